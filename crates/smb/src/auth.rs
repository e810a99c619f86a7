//! Who is it? NTLMv2 (MS-NLMP) in SPNEGO (RFC 4178), against a file of users.
