//! Control codes about the connection itself (MS-SMB2 3.3.5.15.11, 3.3.5.15.12).

use smb::NtStatus;
use smb::fscc::fsctl::{ValidateNegotiate, ValidateNegotiateAnswer, put_interfaces};
use smb::session::Dialect;
use smb::wire::ioctl::Request;

use super::super::super::channel::{Agreed, Exchange};
use super::super::super::server::Server;
use super::{Output, interfaces, output};

/// FSCTL_VALIDATE_NEGOTIATE_INFO: what the client said in NEGOTIATE, signed this time. If that is not what came
/// here, somebody is between us, and the connection ends without another word.
pub(super) fn validate(x: &Exchange<'_>, request: &Request<'_>) -> Output {
    let agreed = x.agreed()?;
    let said = ValidateNegotiate::parse(request.input)?;
    // MS-SMB2 3.3.5.15.12: who wants no answer is no better than who said something else.
    let room = request.output_max as usize >= ValidateNegotiateAnswer::LEN;
    if !room || !is_same(&said, agreed, x.server()) {
        x.channel.end();
        return Err(NtStatus::ACCESS_DENIED);
    }
    let answer = ValidateNegotiateAnswer {
        capabilities: agreed.capabilities.bits(),
        guid: x.server().guid,
        security_mode: agreed.mode.bits(),
        dialect: agreed.dialect as u16,
    };
    output(|out| {
        answer.put(out);
        Ok(())
    })
}

/// Whether that is what was negotiated. With 3.1.1 the negotiation is part of every key, and clients do not ask.
fn is_same(said: &ValidateNegotiate, agreed: &Agreed, server: &Server) -> bool {
    let spoken = said.dialects.iter().filter_map(|dialect| Dialect::from_wire(*dialect));
    let best = spoken.filter(|dialect| server.config.dialects.contains(dialect)).max();
    agreed.dialect != Dialect::Smb311
        && best == Some(agreed.dialect)
        && said.guid == agreed.client
        && said.security_mode == agreed.client_mode.bits()
        && said.capabilities == agreed.client_capabilities.bits()
}

/// FSCTL_QUERY_NETWORK_INTERFACE_INFO: where else the server can be reached.
pub(super) fn interfaces(x: &Exchange<'_>, request: &Request<'_>) -> Output {
    if !x.server().config.multichannel || !x.agreed()?.dialect.is_smb3() {
        return Err(super::unknown(x));
    }
    let config = &x.server().config;
    let found = if config.interfaces.is_empty() {
        interfaces::of_host(&config.listen, x.channel.local.ip())
    } else {
        interfaces::of_settings(&config.interfaces)
    };
    output(|out| put_interfaces(&found, request.output_max as usize, out))
}
