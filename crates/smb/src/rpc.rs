//! The named pipe by which clients ask which shares there are: DCE/RPC and srvsvc (MS-SRVS).
