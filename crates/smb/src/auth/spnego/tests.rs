use super::{
    KERBEROS, MS_KERBEROS, Malformed, NTLMSSP, NegState, NegTokenInit, NegTokenResp, hint,
    mechanism_list,
};
use crate::auth::hex::unhex;

/// What smbd 4.17 says in its NEGOTIATE response.
#[test]
fn the_hint_is_that_of_samba() {
    let theirs = "604806062b0601050502a03e303ca00e300c060a2b06010401823702020aa32a3028a0261b246e6f745f6465\
                  66696e65645f696e5f5246433431373840706c656173655f69676e6f7265";
    assert_eq!(hint(&[NTLMSSP]), unhex(theirs));
    let both = hint(&[MS_KERBEROS, KERBEROS, NTLMSSP]);
    let read = NegTokenInit::parse(&both).unwrap();
    assert_eq!(read.mechanisms, [MS_KERBEROS, KERBEROS, NTLMSSP]);
    assert_eq!(read.token, None);
}

#[test]
fn what_is_written_is_read() {
    for len in [0, 1, 127, 128, 255, 256, 40_000] {
        let token = vec![7; len];
        let written = NegTokenInit::emit(&[KERBEROS, NTLMSSP], Some(&token));
        let read = NegTokenInit::parse(&written).unwrap();
        assert_eq!(read.mechanisms, [KERBEROS, NTLMSSP]);
        assert_eq!(read.mechanisms_der, mechanism_list(&[KERBEROS, NTLMSSP]));
        assert_eq!(read.token, Some(&token[..]));
        let response = NegTokenResp {
            state: Some(NegState::RequestMic),
            mechanism: Some(NTLMSSP),
            token: Some(&token),
            mic: Some(b"0123456789abcdef"),
        };
        assert_eq!(NegTokenResp::parse(&response.emit()), Ok(response));
    }
    assert_eq!(NegTokenResp::parse(&NegTokenResp::default().emit()), Ok(NegTokenResp::default()));
}

#[test]
fn what_is_cut_or_bent_is_malformed() {
    let init = NegTokenInit::emit(&[KERBEROS, NTLMSSP], Some(b"token"));
    for len in 0..init.len() {
        assert_eq!(NegTokenInit::parse(&init[..len]), Err(Malformed), "{len}");
    }
    let state = NegState::AcceptCompleted;
    let response = NegTokenResp { state: Some(state), ..NegTokenResp::default() }.emit();
    for len in 0..response.len() {
        assert_eq!(NegTokenResp::parse(&response[..len]), Err(Malformed), "{len}");
    }
    for bent in [
        // Indefinite and overlong lengths.
        "a1803003a00300",
        "a184000000003000",
        "a18500000000003000",
        // No such state.
        "a1073005a0030a0104",
        // A mechanism that is a number.
        "a1073005a103020100",
    ] {
        assert_eq!(NegTokenResp::parse(&unhex(bent)), Err(Malformed), "{bent}");
    }
    assert_eq!(NegTokenInit::parse(&NegTokenInit::emit(&[], None)), Err(Malformed));
    assert_eq!(NegTokenInit::parse(&NegTokenInit::emit(&[NTLMSSP; 17], None)), Err(Malformed));
}
