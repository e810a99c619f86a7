/* Puts the fragments of one datagram together, and gives up another whose second half does not come.
 *
 *   cargo build --release -p shunt-frag-c
 *   cc -I crates/frag-c/include crates/frag-c/examples/defrag.c target/release/libshunt_frag.a \
 *      -lpthread -ldl -lm -o defrag && ./defrag
 */
#include <stdio.h>
#include <string.h>

#include "shunt_frag.h"

/* Two fragments of a UDP datagram: the last one comes first. */
static uint8_t frames[2][64] = {
    "\x45\0\0\x1b\0\x07\0\x01\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02perhaps",
    "\x45\0\0\x1c\0\x07\x20\0\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02\0\x35\0\x35\0\x0f\0\0",
};

/* The first half of an IPv6 datagram, 16 bytes of UDP. */
static uint8_t half[64] = {0x60, 0, 0, 0, 0, 24, 44, 64, [8] = 0xfd, [23] = 1, [24] = 0xfd, [39] = 2,
                           17, 0, 0, 1, 0, 0, 0, 9, 0, 53, 0, 53, 0, 32};

#define SECOND 1000000000ull

static int complete, released, exceeded;

static void datagram(void *context, const struct shunt_frag_datagram *d) {
    uint8_t packet[65536];
    size_t len = d->header_len;
    (void)context;
    memcpy(packet, d->header, d->header_len);
    for (size_t i = 0; i < d->slice_count; i++) {
        const struct shunt_frag_slice *s = &d->slices[i];
        const uint8_t *from = s->buffer ? (const uint8_t *)s->buffer + s->at : s->bytes;
        memcpy(packet + len, from, s->len);
        len += s->len;
    }
    printf("%u fragments, %zu bytes: %.7s\n", d->fragments, len, (char *)packet + 28);
    complete += len == 35 && memcmp(packet + 28, "perhaps", 7) == 0;
}

/* What a host tells the sender, with as much of the packet as it wants to quote. */
static void notice(void *context, const struct shunt_frag_notice *n) {
    (void)context;
    printf("ICMPv%u type %u code %u, header of %zu bytes\n", n->version, n->icmp_type, n->icmp_code,
           n->header_len);
    exceeded += n->version == 6 && n->icmp_type == 3 && n->icmp_code == 1 && n->pointer == 0 &&
                n->header_len == 40 && memcmp(n->header, half, 40) == 0 && n->buffer == half;
}

static void release(void *context, void *buffer, uint8_t reason) {
    (void)context;
    (void)buffer;
    if (reason)
        printf("dropped: %s\n", shunt_frag_reason(reason));
    released++;
}

int main(void) {
    struct shunt_frag_config config;
    struct shunt_frag_sink sink = {.datagram = datagram, .release = release, .notice = notice};
    struct shunt_frag_packet packets[2];
    struct shunt_frag_counters counters;
    uint8_t secret[16] = "draw at random!";

    shunt_frag_defaults(&config);
    struct shunt_frag_ledger *ledger = shunt_frag_ledger_new(&config);
    if (!ledger) {
        char why[128];
        shunt_frag_check(&config, why, sizeof why);
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    struct shunt_frag_shard *shard = shunt_frag_new(ledger, secret);
    for (int i = 0; i < 2; i++)
        packets[i] = (struct shunt_frag_packet){
            .bytes = frames[i], .len = 28, .buffer = frames[i], .cost = sizeof frames[i]};
    shunt_frag_push(shard, packets, 2, 0, &sink);
    packets[0] = (struct shunt_frag_packet){
        .bytes = half, .len = sizeof half, .buffer = half, .cost = sizeof half};
    shunt_frag_push(shard, packets, 1, 1 * SECOND, &sink);
    if (shunt_frag_expire(shard, 2 * SECOND, 8, &sink) != 1 * SECOND + config.timeout_v6_ns)
        return 1;
    shunt_frag_expire(shard, 1 * SECOND + config.timeout_v6_ns, 8, &sink);
    shunt_frag_count(shard, &counters);
    shunt_frag_clear(shard, 0, &sink);
    shunt_frag_free(shard);
    shunt_frag_ledger_free(ledger);
    return complete == 1 && exceeded == 1 && released == 3 && counters.datagrams == 1 ? 0 : 1;
}
