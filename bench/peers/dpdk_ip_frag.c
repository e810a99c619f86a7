/*
 * DPDK's librte_ip_frag on a trace that `fragbench trace` wrote.
 *
 *     dpdk_ip_frag TRACE PASSES
 *
 * Prints `dpdk=NS` and `dpdk-kept=NS`: nanoseconds per fragment, the median over the passes. As in
 * DPDK's own example, packets come in bursts of 32 and headers are prefetched. In the first figure each
 * datagram's mbufs are freed when it is complete, as our engine gives back its buffers; in the second
 * they are not, and no program could go on so. Before each pass all packets are written anew, as by a
 * driver, which is not timed; nor is the first pass, in which each byte of each datagram is looked at.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ip.h>
#include <rte_ip_frag.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#define BURST 32
#define AHEAD 4
#define SLOT 2368 /* as of fragbench, and what a pool of mbufs has from one to the next */
#define IP_HEADER 20

/* What the file begins with; then the lengths, and from `slots_at` on the slots. */
struct head {
	uint64_t fragments, datagrams, flows, payload, slots_at;
};

static const struct head *head;
static const uint16_t *lens;
static const uint8_t *slots;
static struct rte_mbuf **mbufs, **freed;
static struct rte_mempool *pool;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, rte_strerror(rte_errno));
	exit(1);
}

static void map(const char *path)
{
	int fd = open(path, O_RDONLY);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	void *at = size < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (at == MAP_FAILED)
		fail(path);
	head = at;
	lens = (const void *)(head + 1);
	slots = (const uint8_t *)at + head->slots_at;
}

static void fill(void)
{
	pool = rte_pktmbuf_pool_create("trace", head->fragments, RTE_MEMPOOL_CACHE_MAX_SIZE, 0,
			RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	mbufs = calloc(head->fragments, sizeof(*mbufs));
	freed = calloc(head->fragments, sizeof(*freed));
	if (pool == NULL || mbufs == NULL || freed == NULL)
		fail("no room for the trace");
	if (rte_mempool_get_bulk(pool, (void **)mbufs, head->fragments) < 0)
		fail("no mbufs");
	for (uint64_t i = 0; i < head->fragments; i++) {
		rte_pktmbuf_reset(mbufs[i]);
		memcpy(rte_pktmbuf_append(mbufs[i], lens[i]), slots + i * SLOT, lens[i]);
	}
}

enum what { LOOK, KEEP, FREE };

/* As they came in. */
static void reset(enum what before)
{
	if (before == FREE) {
		rte_mempool_cache_flush(rte_mempool_default_cache(pool, rte_lcore_id()), pool);
		if (rte_mempool_get_bulk(pool, (void **)freed, head->fragments) < 0)
			fail("mbufs were lost");
	}
	for (uint64_t i = 0; i < head->fragments; i++) {
		struct rte_mbuf *m = mbufs[i];

		m->data_off = RTE_PKTMBUF_HEADROOM;
		m->data_len = m->pkt_len = lens[i];
		m->next = NULL;
		m->nb_segs = 1;
		m->l2_len = 0;
		m->l3_len = IP_HEADER;
		memcpy(rte_pktmbuf_mtod(m, void *), slots + i * SLOT, lens[i]);
	}
}

static uint64_t word_of(uint32_t datagram, uint64_t word)
{
	uint64_t seed = (uint64_t)datagram << 32 | word;

	return (seed ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
}

/* Every byte behind the UDP header. */
static void check(struct rte_mbuf *m)
{
	const struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod(m, const void *);
	uint32_t flow = (rte_be_to_cpu_32(ip->src_addr) - 0x14000001) >> 8;
	uint32_t datagram = rte_be_to_cpu_16(ip->packet_id) * head->flows + flow;
	uint64_t at = 0, skip = IP_HEADER;

	for (; m != NULL; m = m->next, skip = 0) {
		const uint8_t *bytes = rte_pktmbuf_mtod(m, const uint8_t *);

		for (uint64_t i = skip; i < m->data_len; i++, at++)
			if (at >= 8 && bytes[i] != (uint8_t)(word_of(datagram, at / 8) >> (at % 8 * 8)))
				fail("a datagram is not what was sent");
	}
	if (at != head->payload)
		fail("a datagram has not the length that was sent");
}

static uint64_t pass(struct rte_ip_frag_tbl *table, enum what what)
{
	static struct rte_ip_frag_death_row dead;
	uint64_t datagrams = 0;

	for (uint64_t begin = 0; begin < head->fragments; begin += BURST) {
		uint64_t end = RTE_MIN(begin + BURST, head->fragments), now = rte_rdtsc();

		for (uint64_t i = begin; i < RTE_MIN(begin + AHEAD, end); i++)
			rte_prefetch0(rte_pktmbuf_mtod(mbufs[i], void *));
		for (uint64_t i = begin; i < end; i++) {
			struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod(mbufs[i], void *);
			struct rte_mbuf *whole;

			if (i + AHEAD < end)
				rte_prefetch0(rte_pktmbuf_mtod(mbufs[i + AHEAD], void *));
			if (!rte_ipv4_frag_pkt_is_fragmented(ip))
				continue;
			whole = rte_ipv4_frag_reassemble_packet(table, &dead, mbufs[i], now, ip);
			if (whole == NULL)
				continue;
			datagrams++;
			if (what == LOOK)
				check(whole);
			else if (what == FREE)
				rte_pktmbuf_free(whole);
		}
		if (dead.cnt != 0)
			fail("fragments were dropped");
	}
	return datagrams;
}

/* Nanoseconds of CPU time: what it would take if nobody else used the CPU. */
static double cpu_time(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median over the passes. */
static double measure(struct rte_ip_frag_tbl *table, int passes, enum what what)
{
	double *times = calloc(passes, sizeof(*times));

	for (int i = 0; times != NULL && i < passes; i++) {
		uint64_t datagrams;
		double begin;

		reset(KEEP);
		begin = cpu_time();
		datagrams = pass(table, what);
		times[i] = (cpu_time() - begin) / head->fragments;
		if (datagrams != head->datagrams)
			fail("datagrams were lost");
		if (what == FREE)
			reset(FREE);
	}
	if (times == NULL)
		fail("no room");
	qsort(times, passes, sizeof(*times), by_size);
	return times[passes / 2];
}

int main(int count, char **words)
{
	char *eal[] = { words[0], "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "-l", "0",
		"-m", "512", "--log-level", "error" };
	int passes = count == 3 ? atoi(words[2]) : 0;
	struct rte_ip_frag_tbl *table;
	uint32_t buckets;

	if (passes < 1) {
		fprintf(stderr, "usage: dpdk_ip_frag TRACE PASSES\n");
		return 2;
	}
	map(words[1]);
	if (rte_eal_init(RTE_DIM(eal), eal) < 0)
		fail("no EAL");
	fill();
	buckets = rte_align32pow2(RTE_MAX(head->flows, 64u));
	table = rte_ip_frag_table_create(buckets, 16, buckets * 4, rte_get_tsc_hz() * 30, SOCKET_ID_ANY);
	if (table == NULL)
		fail("no table");
	measure(table, 1, LOOK);
	printf("dpdk-kept=%.2f\n", measure(table, passes, KEEP));
	printf("dpdk=%.2f\n", measure(table, passes, FREE));
	return 0;
}
