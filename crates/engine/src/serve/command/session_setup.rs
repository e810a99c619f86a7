//! SESSION_SETUP and LOGOFF (MS-SMB2 3.3.5.5, 3.3.5.6).

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use smb::auth::{Acceptor, Authenticated, Input, Reason, Refusal, Step};
use smb::crypto::{KeySchedule, PreauthHash, SecretKey, SessionKeys, Signer, SigningAlgorithm};
use smb::session::Dialect;
use smb::wire::bare;
use smb::wire::header::Flags;
use smb::wire::negotiate::SecurityMode;
use smb::wire::session_setup::{Request, RequestFlags, Response, SessionFlags};
use smb::{NtStatus, SessionId};

use super::super::accounts::{Account, Accounts, NoAccount};
use super::super::channel::{After, Agreed, Bound, ChannelRef, Exchange};
use super::super::config::Demand;
use super::super::runtime;
use super::super::server::{self, Server};
use super::super::session::{Beginning, Identity, Session};
use super::super::users::{KnownUsers, must_stay};
use super::Answer;

/// Set-ups that a connection may have begun and not ended, those included that a thread is at.
const SET_UPS: usize = 64;
/// And before anybody has come in by it: anybody can make those wait, each with a few KiB.
const FIRST_SET_UPS: usize = 16;

/// What a set-up is to lead to.
enum Aim {
    /// A session.
    New,
    /// The same session, its user authenticated again.
    Again(Rc<Bound>),
    /// This connection as a further channel of a session. Until it is one, it signs as the first channel does.
    Bind(Rc<Bound>),
}

/// A set-up under way.
pub(in crate::serve) struct SetUp {
    aim: Aim,
    acceptor: Acceptor,
    preauth: PreauthHash,
}

fn schedule(dialect: Dialect, preauth: &PreauthHash) -> KeySchedule<'_> {
    match dialect {
        Dialect::Smb202 | Dialect::Smb210 => KeySchedule::Smb2,
        Dialect::Smb300 | Dialect::Smb302 => KeySchedule::Smb30,
        Dialect::Smb311 => KeySchedule::Smb311(preauth),
    }
}

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    let agreed = x.agreed()?;
    let binding = request.flags.contains(RequestFlags::BINDING);
    let signed = x.header.flags.contains(Flags::SIGNED);
    if x.bound.is_none() && (binding || signed) {
        let first = as_first_channel(x)?;
        x.bound = Some(first.clone());
        if let Some(signer) = first.signer.as_ref().filter(|_| signed) {
            signer.verify_message(x.message).map_err(|_| NtStatus::ACCESS_DENIED)?;
        }
    }
    let known = x.channel.set_ups.borrow_mut().remove(&x.header.session);
    let (id, mut set_up) = match known {
        // MS-SMB2 3.3.5.5: each request of it is signed.
        Some(_) if binding && !signed => return Err(NtStatus::INVALID_PARAMETER),
        Some(set_up) if binding == matches!(set_up.aim, Aim::Bind(_)) => (x.header.session, set_up),
        Some(_) => return Err(NtStatus::REQUEST_NOT_ACCEPTED),
        None => begin(x, agreed, &request)?,
    };
    x.answer_session(id);
    x.leave_session(id);
    set_up.preauth.update(x.message);
    let (server, address) = (x.server().clone(), x.channel.peer.ip());
    let (step, account);
    let stepping = &x.channel.stepping;
    stepping.set(stepping.get() + 1);
    (set_up, step, account) = advance(&server, address, set_up, request.token).await;
    stepping.set(stepping.get() - 1);
    // It may have taken its time. A connection that has ended meanwhile has lost its sessions already: one that came
    // now would stay for ever.
    if !x.channel.shared.is_open() {
        return Err(NtStatus::USER_SESSION_DELETED);
    }
    match step {
        Step::Continue(token) => {
            x.reply.write(&Response { flags: SessionFlags::empty(), token: &token });
            x.channel.set_ups.borrow_mut().insert(id, set_up);
            Err(NtStatus::MORE_PROCESSING_REQUIRED).or_else(Ok)
        }
        Step::Refused(refusal) => Err(refused(x, &set_up.aim, &refusal)),
        Step::Done(who, token) => {
            KnownUsers::new(&server, address).succeeded(&who.user);
            done(x, agreed, &request, id, set_up, (*who, account), &token)
        }
    }
}

/// Takes a client's token: on a thread that may wait, if that may take its time. Who has come in is given their Unix
/// user, where each has one.
async fn advance(
    server: &Arc<Server>,
    address: IpAddr,
    set_up: SetUp,
    token: &[u8],
) -> (SetUp, Step, Option<Account>) {
    let take = move |server: &Server, acceptor: &mut Acceptor, token: &[u8]| {
        let users = KnownUsers::new(server, address);
        acceptor.step(token, &Input { users: &users, now: server.now(), random: server::random() })
    };
    let SetUp { aim, mut acceptor, preauth } = set_up;
    let step = if acceptor.may_block() {
        let (server, token) = (server.clone(), token.to_vec());
        let taken = runtime::offload(move || {
            let step = take(&server, &mut acceptor, &token);
            (acceptor, step)
        });
        let step;
        (acceptor, step) = taken.await;
        step
    } else {
        take(server, &mut acceptor, token)
    };
    let (step, account) = match (step, &server.accounts) {
        (Step::Done(who, token), Some(accounts)) => match account(accounts, &who).await {
            Ok(account) => (Step::Done(who, token), Some(account)),
            Err(why) => (Step::Refused(without_account(*who, &why)), None),
        },
        (step, _) => (step, None),
    };
    (SetUp { aim, acceptor, preauth }, step, account)
}

/// Looks the Unix user of somebody up, on a thread that may wait: other hosts may have to be asked.
async fn account(accounts: &Arc<Accounts>, who: &Authenticated) -> Result<Account, NoAccount> {
    let (accounts, uid) = (accounts.clone(), who.uid);
    let named = (!who.guest && !who.anonymous).then(|| who.user.clone());
    let found = runtime::offload(move || match named {
        Some(name) => accounts.of_user(&name, uid),
        None => accounts.of_nobody(),
    });
    found.await
}

fn without_account(who: Authenticated, why: &NoAccount) -> Box<Refusal> {
    Box::new(Refusal {
        status: Reason::NoAccount.status(),
        reason: Reason::NoAccount,
        user: who.user,
        domain: who.domain,
        workstation: who.workstation,
        detail: why.to_string(),
    })
}

/// Decides what the first request of a set-up is about.
fn begin(
    x: &Exchange<'_>,
    agreed: &Agreed,
    request: &Request<'_>,
) -> Result<(SessionId, SetUp), NtStatus> {
    let id = x.header.session;
    let binding = request.flags.contains(RequestFlags::BINDING);
    let (id, aim) = match () {
        () if binding => (id, Aim::Bind(may_bind(x, agreed)?)),
        () if id == SessionId(0) => (x.server().next_session_id(), Aim::New),
        () => {
            let bound = x.channel.bound(id).ok_or(NtStatus::USER_SESSION_DELETED)?;
            (id, Aim::Again(bound))
        }
    };
    let most = if x.channel.sessions.borrow().is_empty() { FIRST_SET_UPS } else { SET_UPS };
    if x.channel.set_ups.borrow().len() + x.channel.stepping.get() >= most {
        return Err(NtStatus::INSUFFICIENT_RESOURCES);
    }
    let acceptor = x.server().acceptor();
    Ok((id, SetUp { aim, acceptor, preauth: agreed.preauth }))
}

/// The session that a set-up names and this connection does not have, as its first channel signs. Whatever is wrong
/// with the set-up, the client wants to hear it signed.
///
/// # Errors
///
/// INVALID_PARAMETER for no session, USER_SESSION_DELETED for one that there is not, NOT_SUPPORTED for one without a
/// key.
fn as_first_channel(x: &Exchange<'_>) -> Result<Rc<Bound>, NtStatus> {
    let id = x.header.session;
    if id == SessionId(0) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let session = x.server().session(id).filter(|session| !session.is_closed());
    let session = session.ok_or(NtStatus::USER_SESSION_DELETED)?;
    let key = session.signing_key.as_ref().ok_or(NtStatus::NOT_SUPPORTED)?;
    let signer = Signer::new(session.signing, key);
    Ok(Rc::new(Bound::new(session, Some(Arc::new(signer)))))
}

/// Whether this connection may become a channel of the session (MS-SMB2 3.3.5.5, step 4), in the order in which
/// Windows and Samba look at it. Like Windows, it does not mind another ClientGuid: who it is says the key.
fn may_bind(x: &Exchange<'_>, agreed: &Agreed) -> Result<Rc<Bound>, NtStatus> {
    let server = x.server();
    let bound = x.bound.as_ref().ok_or(NtStatus::USER_SESSION_DELETED)?;
    let session = &bound.session;
    if session.signing != agreed.signing {
        // Of the others, one may take the place of the other.
        if session.signing == SigningAlgorithm::AesGmac {
            return Err(NtStatus::REQUEST_OUT_OF_SEQUENCE);
        }
        if agreed.signing == SigningAlgorithm::AesGmac {
            return Err(NtStatus::NOT_SUPPORTED);
        }
    }
    if !agreed.dialect.is_smb3() || !server.config.multichannel {
        return Err(NtStatus::REQUEST_NOT_ACCEPTED);
    }
    if !x.header.flags.contains(Flags::SIGNED) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if session.dialect != agreed.dialect || session.cipher != agreed.cipher {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if session.client.is_nil() {
        return Err(NtStatus::USER_SESSION_DELETED);
    }
    if x.channel.bound(session.id).is_some() {
        return Err(NtStatus::REQUEST_NOT_ACCEPTED);
    }
    if session.is_expired(server.now()) {
        return Err(NtStatus::NETWORK_SESSION_EXPIRED);
    }
    if session.state().channels.len() >= server.config.limits.channels {
        return Err(NtStatus::INSUFFICIENT_RESOURCES);
    }
    Ok(bound.clone())
}

fn refused(x: &mut Exchange<'_>, aim: &Aim, refusal: &Refusal) -> NtStatus {
    let server = x.server();
    server.refused(x.channel.peer, refusal);
    if let Aim::Again(bound) = aim {
        // Somebody else now sits at the other end, or nobody.
        server.end_session(&bound.session, false);
    }
    refusal.status
}

fn done(
    x: &mut Exchange<'_>,
    agreed: &Agreed,
    request: &Request<'_>,
    id: SessionId,
    set_up: SetUp,
    (who, account): (Authenticated, Option<Account>),
    token: &[u8],
) -> Answer {
    let server = x.server().clone();
    let (expires, user_expires) = (server.session_end(who.expires), who.user_expires);
    let identity = Identity {
        user: who.user,
        domain: who.domain,
        workstation: who.workstation,
        uid: who.uid,
        guest: who.guest,
        anonymous: who.anonymous,
        vouched: who.vouched,
        account,
    };
    let keyed = !identity.guest && !identity.anonymous;
    match &set_up.aim {
        Aim::New => {
            let must_encrypt = server.config.encryption == Demand::Required;
            if !keyed && (must_encrypt || server.config.signing == Demand::Required) {
                server.logons().kept_out();
                server.log(
                    x.channel.peer,
                    "guest refused: guests can neither sign nor encrypt, and it is required",
                );
                return Err(NtStatus::ACCESS_DENIED);
            }
            if must_encrypt && agreed.cipher.is_none() {
                server.logons().kept_out();
                server.log(
                    x.channel.peer,
                    "refused: encryption is required, and the client has none",
                );
                return Err(NtStatus::ACCESS_DENIED);
            }
            let keys = keyed.then(|| {
                let schedule = schedule(agreed.dialect, &set_up.preauth);
                SessionKeys::derive(schedule, &who.session_key, agreed.cipher)
            });
            let wished = request.security_mode.contains(SecurityMode::SIGNING_REQUIRED);
            let session = Arc::new(Session::new(Beginning {
                id,
                client: agreed.client,
                dialect: agreed.dialect,
                cipher: agreed.cipher,
                signing: agreed.signing,
                peer: x.channel.peer,
                began_ms: server.now_ms(),
                identity,
                must_sign: keyed && (wished || server.config.signing == Demand::Required),
                must_encrypt,
                expires,
                user_expires,
                keys: keys.as_ref(),
            }));
            server.add_session(&session)?;
            must_stay(&server, x.channel.peer, &session)?;
            end_previous(x, request, &session);
            server.logged_on(x.channel.peer, &session);
            let signer = keys.map(|keys| Signer::new(agreed.signing, &keys.signing));
            session.state().channels.push(x.channel.shared.clone());
            accept(x, session, signer);
        }
        Aim::Again(bound) => {
            // MS-SMB2 3.3.5.5.3: another user may take the session over. Its opens stay as they are, and its keys: a
            // guest's, that has none, cannot get any now.
            let same = identity.same_user(&bound.session.identity());
            bound.session.renewed(identity, expires, user_expires);
            must_stay(&server, x.channel.peer, &bound.session)?;
            let how = if same { "logged on again" } else { "took a session over" };
            server.audit(x.channel.peer, &bound.session, how);
            x.bound = Some(bound.clone());
        }
        Aim::Bind(first) => {
            let session = first.session.clone();
            if !identity.same_user(&session.identity()) || !keyed {
                server.refused_channel(x.channel.peer, &identity, &session);
                return Err(NtStatus::ACCESS_DENIED);
            }
            let key = channel_key(agreed.dialect, &set_up.preauth, &who.session_key);
            let signer = Signer::new(agreed.signing, &key);
            // What was so when the set-up began: others may have been served since.
            if x.channel.bound(session.id).is_some() {
                return Err(NtStatus::REQUEST_NOT_ACCEPTED);
            }
            join(&session, x.channel.shared.clone(), server.config.limits.channels)?;
            server.audit(x.channel.peer, &session, "logged on by another channel");
            accept(x, session, Some(signer));
        }
    }
    x.sign = true;
    let flags = x.bound.as_ref().map_or(SessionFlags::empty(), |bound| flags(&bound.session));
    x.reply.write(&Response { flags, token });
    Ok(NtStatus::SUCCESS)
}

fn channel_key(dialect: Dialect, preauth: &PreauthHash, key: &SecretKey) -> SecretKey {
    SessionKeys::channel_signing(schedule(dialect, preauth), key)
}

fn flags(session: &Session) -> SessionFlags {
    let identity = session.identity();
    let mut flags = SessionFlags::empty();
    flags.set(SessionFlags::GUEST, identity.guest);
    flags.set(SessionFlags::NULL, identity.anonymous);
    flags.set(SessionFlags::ENCRYPT, session.must_encrypt);
    flags
}

/// The session gets one more channel, if it may have one more.
///
/// # Errors
///
/// INSUFFICIENT_RESOURCES if it has `most`; USER_SESSION_DELETED if it has ended.
fn join(session: &Session, channel: ChannelRef, most: usize) -> Result<(), NtStatus> {
    let id = channel.id();
    {
        let mut state = session.state();
        if state.channels.len() >= most {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        state.channels.push(channel);
    }
    // Looked at after it was put in: who ends it looks for channels after that.
    if session.is_closed() {
        session.state().channels.retain(|other| other.id() != id);
        return Err(NtStatus::USER_SESSION_DELETED);
    }
    Ok(())
}

/// The connection knows that it is a channel of the session from now on.
fn accept(x: &mut Exchange<'_>, session: Arc<Session>, signer: Option<Signer>) {
    let id = session.id;
    let signer = signer.map(Arc::new);
    let bound = Rc::new(Bound::new(session, signer));
    x.channel.sessions.borrow_mut().insert(id, bound.clone());
    x.bound = Some(bound);
}

/// A client that lost its connection says which session it had: that one need not wait for its end.
fn end_previous(x: &Exchange<'_>, request: &Request<'_>, session: &Session) {
    let previous = request.previous_session;
    if previous == SessionId(0) || previous == session.id {
        return;
    }
    let server = x.server();
    if let Some(old) = server.session(previous)
        && old.identity().same_user(&session.identity())
    {
        server.end_session(&old, true);
    }
}

/// The answer is complete: 3.1.1 takes its bytes into the hash, unless the keys came of it already.
pub(super) fn answered(x: &mut Exchange<'_>, status: NtStatus) -> After {
    if status == NtStatus::MORE_PROCESSING_REQUIRED {
        let mut set_ups = x.channel.set_ups.borrow_mut();
        let id = x.answered_session();
        if let Some(set_up) = set_ups.get_mut(&id) {
            x.reply.sign_now();
            set_up.preauth.update(x.reply.last());
        }
    }
    After::Next
}

pub(super) async fn logoff(x: &mut Exchange<'_>) -> Answer {
    bare::Request::parse(x.message)?;
    let session = x.session()?.clone();
    x.server().end_session(&session, true).done_soon().await;
    x.reply.write(&bare::Response);
    Ok(NtStatus::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_gets_no_channel_too_many_and_none_after_its_end() {
        let session = Session::of_nobody();
        let join = |id, most| join(&session, ChannelRef::of_nobody(id), most);
        let ids = || session.state().channels.iter().map(ChannelRef::id).collect::<Vec<_>>();
        assert_eq!(join(1, 2), Ok(()));
        assert_eq!(join(2, 2), Ok(()));
        assert_eq!(join(3, 2), Err(NtStatus::INSUFFICIENT_RESOURCES));
        assert_eq!(ids(), [1, 2]);
        assert!(session.close());
        assert_eq!(join(3, 3), Err(NtStatus::USER_SESSION_DELETED));
        assert_eq!(ids(), [1, 2]);
    }
}
