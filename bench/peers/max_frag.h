/* Read after rte_config.h: as many fragments as a datagram of 65,507 bytes has, and not 8. */
#undef RTE_LIBRTE_IP_FRAG_MAX_FRAG
#define RTE_LIBRTE_IP_FRAG_MAX_FRAG 64
