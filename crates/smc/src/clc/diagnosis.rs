//! Why a handshake was declined: numbers that hosts tell each other and people look up.

/// Declares the diagnoses: name, number on the wire, what it means in one line.
macro_rules! diagnoses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// Why SMC was declined. The numbers are those of RFC 7609 A.2.4 and of Linux, which `smcss` shows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Diagnosis {
            $(#[doc = $text] $name,)*
            /// A number that is not in the table.
            Other(u32),
        }

        /// All that have a name.
        pub const DIAGNOSES: &[Diagnosis] = &[$(Diagnosis::$name),*];

        impl Diagnosis {
            /// Of a number.
            #[must_use]
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Other(other),
                }
            }

            /// The number.
            #[must_use]
            pub const fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// What it means, in one line.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Other(_) => "A reason that is not known here.",
                }
            }

            /// The same where the peer has said it.
            #[must_use]
            pub const fn text_of_peer(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("The peer: ", $text),)*
                    Self::Other(_) => "The peer: A reason that is not known here.",
                }
            }
        }
    };
}

diagnoses! {
    Memory = 0x0101_0000, "Not enough memory for buffers or the connection.";
    TimeoutConfirmLink = 0x0201_0000, "CONFIRM LINK was not answered in time.";
    TimeoutAddLink = 0x0202_0000, "ADD LINK was not answered in time.";
    Configuration = 0x0300_0000, "The configuration does not allow SMC here.";
    PeerNoSmc = 0x0301_0000, "The peer does not speak SMC.";
    IpSec = 0x0302_0000, "IPsec protects this connection.";
    NoDevice = 0x0303_0000, "No device for SMC was found.";
    NoIsmDevice = 0x0303_0001, "No device for SMC-D was found.";
    NoRdmaDevice = 0x0303_0002, "No device for SMC-R was found.";
    NoIsmV2Support = 0x0303_0003, "The hardware does not support SMC-Dv2.";
    NoV2Extension = 0x0303_0004, "The peer's proposal has no part for version 2.";
    NoIsmV2Extension = 0x0303_0005, "The peer's proposal has no part for SMC-Dv2.";
    NoSeid = 0x0303_0006, "The peer sent no system EID.";
    NoIsmV2Device = 0x0303_0007, "No device for SMC-Dv2 was found.";
    NoUeid = 0x0303_0008, "The peer sent no user EID.";
    Release = 0x0303_0009, "The releases of version 2 could not be agreed on.";
    MaxConns = 0x0303_000a, "The number of connections per link group could not be agreed on.";
    MaxLinks = 0x0303_000b, "The number of links per link group could not be agreed on.";
    Mode = 0x0304_0000, "One side speaks SMC-R, the other SMC-D.";
    EyeCatcher = 0x0305_0000, "The peer keeps eye catchers in its buffers.";
    SocketOption = 0x0306_0000, "A socket option is set that SMC does not support.";
    Prefix = 0x0307_0000, "The two hosts are not in one IP subnet.";
    VlanLookup = 0x0308_0000, "The VLAN of the connection could not be found out.";
    VlanRegistration = 0x0309_0000, "The VLAN could not be registered with the ISM device.";
    NoActiveLink = 0x030a_0000, "The link group has no active link.";
    NoServerLink = 0x030b_0000, "The link that the server named is not known here.";
    Version = 0x030c_0000, "The versions of SMC do not match.";
    DmbLimit = 0x030d_0000, "The ISM device has no room for another buffer.";
    NoRoute = 0x030e_0000, "There is no route to the peer's RoCE address.";
    Indirect = 0x030f_0000, "One side would reach the other directly, the other by a router.";
    OutOfSync = 0x0400_0000, "The two hosts do not agree on which link groups exist.";
    PeerDeclined = 0x0500_0000, "The peer declined.";
    Internal = 0x0999_0000, "An internal error.";
    RToken = 0x0999_0001, "The peer's key to its buffer could not be kept.";
    LinkReady = 0x0999_0002, "The link could not be made ready.";
    BufferRegistration = 0x0999_0003, "The buffer could not be registered.";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_number_has_one_name_and_one_line() {
        let codes: HashSet<u32> = DIAGNOSES.iter().map(|d| d.code()).collect();
        assert_eq!((codes.len(), DIAGNOSES.len()), (36, 36));
        for diagnosis in DIAGNOSES {
            assert_eq!(Diagnosis::from_code(diagnosis.code()), *diagnosis);
            assert!(!diagnosis.text().contains('\n') && diagnosis.text().ends_with('.'));
        }
        assert_eq!(Diagnosis::from_code(7), Diagnosis::Other(7));
        assert_eq!(Diagnosis::Other(7).code(), 7);
    }
}
