/* Two cores with a receive queue each, as a card with RSS has them: the fragments of a datagram come in on
 * either. Each core asks whose a fragment is, keeps its own and hands the others over by a ring. What is whole
 * comes out as a chain of packet buffers, none of which was copied, as rte_ipv4_frag_reassemble_packet has it.
 *
 *   cargo build --release -p shunt-frag-c
 *   cc -std=c11 -I crates/frag-c/include crates/frag-c/examples/mbufs.c target/release/libshunt_frag.a \
 *      -lpthread -ldl -lm -o mbufs && ./mbufs
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shunt_frag.h"

#define CORES 2
#define DATAGRAMS 300
#define FRAGMENTS 4
#define EACH 1000
#define ROOM 2048 /* of a ring; a power of two */

/* A packet buffer, with the fields of an rte_mbuf that matter here. */
struct mbuf {
    struct mbuf *next;
    _Atomic uint32_t refcnt;
    uint32_t pkt_len; /* of the chain, in its first buffer */
    uint16_t data_off, data_len;
    uint8_t buf[2048];
};

static atomic_int buffers; /* that are not free */

static struct mbuf *mbuf_alloc(void) {
    struct mbuf *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    atomic_store(&m->refcnt, 1);
    m->data_off = 128;
    atomic_fetch_add(&buffers, 1);
    return m;
}

static void mbuf_free(struct mbuf *m) {
    if (atomic_fetch_sub(&m->refcnt, 1) == 1) {
        atomic_fetch_sub(&buffers, 1);
        free(m);
    }
}

static uint8_t *mbuf_data(struct mbuf *m) { return m->buf + m->data_off; }

/* From one core to the other: one writes, one reads. */
struct ring {
    struct mbuf *entries[ROOM];
    _Alignas(64) _Atomic uint32_t head;
    _Alignas(64) _Atomic uint32_t tail;
};

static bool ring_put(struct ring *r, struct mbuf *m) {
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&r->tail, memory_order_acquire) == ROOM)
        return false;
    r->entries[head % ROOM] = m;
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return true;
}

static struct mbuf *ring_get(struct ring *r) {
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    if (tail == atomic_load_explicit(&r->head, memory_order_acquire))
        return NULL;
    struct mbuf *m = r->entries[tail % ROOM];
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return m;
}

struct core {
    uint32_t number;
    struct shunt_frag_shard *shard;
    struct mbuf *queue[DATAGRAMS * FRAGMENTS]; /* what the card has for this core */
    int queued;
    struct ring from_other;
    atomic_bool done;
    int handed_over, no_room, whole, wrong, dropped;
};

static struct core cores[CORES];
static struct shunt_frag_steering *steering;

/* The byte at that place of a datagram's payload. */
static uint8_t byte_of(int datagram, int at) { return (uint8_t)(datagram * 31 + at * 7 + at / 256); }

/* The first slice that has the buffer of the `i`-th. */
static const struct shunt_frag_slice *first_of(const struct shunt_frag_datagram *d, size_t i) {
    const struct shunt_frag_slice *s = d->slices;
    while (s->buffer != d->slices[i].buffer)
        s++;
    return s;
}

/* A chain: a new buffer for the header, then those that the payload came in, without their own headers. */
static struct mbuf *chain(const struct shunt_frag_datagram *d) {
    struct mbuf *head = mbuf_alloc(), *last = head;
    memcpy(mbuf_data(head), d->header, d->header_len);
    head->data_len = (uint16_t)d->header_len;
    head->pkt_len = (uint32_t)(d->header_len + d->payload_len);
    for (size_t i = 0; i < d->slice_count; i++) {
        const struct shunt_frag_slice *s = &d->slices[i];
        /* Only with an `overlap` other than 0 can a buffer be in several slices; and if it is, somebody has it beside the
         * engine by now. */
        struct mbuf *m = s->buffer;
        const struct shunt_frag_slice *first = m && atomic_load(&m->refcnt) > 1 ? first_of(d, i) : s;
        if (first != s) {
            /* It is in the chain already, and cannot be there twice: rte_pktmbuf_attach would do, or a copy. */
            const uint8_t *packet = mbuf_data(m) - first->at;
            m = mbuf_alloc();
            memcpy(mbuf_data(m), packet + s->at, s->len);
        } else if (m) {
            /* Ours as well as the engine's, which releases it after this call. */
            atomic_fetch_add(&m->refcnt, 1);
            m->data_off = (uint16_t)(m->data_off + s->at);
        } else {
            /* It was small and had been copied, so that it did not pin a buffer. */
            m = mbuf_alloc();
            memcpy(mbuf_data(m), s->bytes, s->len);
        }
        m->data_len = (uint16_t)s->len;
        last->next = m;
        last = m;
    }
    return head;
}

static void chain_free(struct mbuf *m) {
    while (m) {
        struct mbuf *next = m->next;
        mbuf_free(m);
        m = next;
    }
}

/* Where the packet would go on to the application. Here it is checked. */
static void datagram(void *context, const struct shunt_frag_datagram *d) {
    struct core *core = context;
    struct mbuf *m = chain(d);
    int id = m->buf[m->data_off + 4] << 8 | m->buf[m->data_off + 5], at = 0;
    bool good = m->pkt_len == 20 + (FRAGMENTS - 1) * EACH + 96;
    for (struct mbuf *next = m->next; next; next = next->next)
        for (int i = 0; i < next->data_len; i++, at++)
            good &= mbuf_data(next)[i] == byte_of(id, at);
    core->whole++;
    core->wrong += !good || at != (FRAGMENTS - 1) * EACH + 96;
    chain_free(m);
}

static void release(void *context, void *buffer, uint8_t reason) {
    struct core *core = context;
    core->dropped += reason != 0;
    mbuf_free(buffer);
}

static void push(struct core *core, struct mbuf *m, const struct shunt_frag_sink *sink) {
    struct shunt_frag_packet packet = {
        .bytes = mbuf_data(m), .len = m->data_len, .buffer = m, .cost = sizeof m->buf};
    shunt_frag_push(core->shard, &packet, 1, 0, sink);
}

static void *run(void *argument) {
    struct core *core = argument, *other = &cores[!core->number];
    struct shunt_frag_sink sink = {.context = core, .datagram = datagram, .release = release};
    struct mbuf *m;
    for (int i = 0; i < core->queued; i++) {
        m = core->queue[i];
        uint32_t owner = shunt_frag_steer(steering, mbuf_data(m), m->data_len, 0);
        if (owner == core->number || owner == SHUNT_FRAG_NO_SHARD) {
            push(core, m, &sink);
        } else if (ring_put(&other->from_other, m)) {
            core->handed_over++;
        } else {
            core->no_room++; /* Whoever waited here would lose what comes in meanwhile. */
            mbuf_free(m);
        }
        if ((m = ring_get(&core->from_other)))
            push(core, m, &sink);
    }
    atomic_store(&core->done, true);
    for (bool last = false; !last;) {
        last = atomic_load(&other->done);
        while ((m = ring_get(&core->from_other)))
            push(core, m, &sink);
    }
    return NULL;
}

/* A fragment's header, before which its payload was written. */
static void finish(struct mbuf *m, int id, int at, int more, int len) {
    uint8_t *ip = mbuf_data(m);
    uint16_t total = (uint16_t)(20 + len), offset = (uint16_t)(at / 8 | more << 13);
    const uint8_t header[20] = {0x45, 0, (uint8_t)(total >> 8), (uint8_t)total, (uint8_t)(id >> 8),
                                (uint8_t)id, (uint8_t)(offset >> 8), (uint8_t)offset, 64, 17, 0, 0,
                                10, 0, 0, 1, 10, 0, 0, 2};
    memcpy(ip, header, sizeof header);
    m->data_len = total;
}

/* One fragment: 20 bytes of header, then a part of the payload. */
static struct mbuf *fragment(int id, int which) {
    struct mbuf *m = mbuf_alloc();
    int at = which * EACH, more = which < FRAGMENTS - 1, len = more ? EACH : 96;
    for (int i = 0; i < len; i++)
        mbuf_data(m)[20 + i] = byte_of(id, at + i);
    finish(m, id, at, more, len);
    return m;
}

/* Where eight of each letter come out. */
static void overlapping_datagram(void *context, const struct shunt_frag_datagram *d) {
    const char *expected = "ABBCCBBBB";
    struct mbuf *m = chain(d);
    size_t at = 0;
    bool good = true;
    for (struct mbuf *next = m->next; next && at < 72; next = next->next)
        for (int i = 0; i < next->data_len; i++, at++)
            good &= at < 72 && mbuf_data(next)[i] == (uint8_t)expected[at / 8];
    *(bool *)context = good && at == 72;
    chain_free(m);
}

static void overlapping_release(void *context, void *buffer, uint8_t reason) {
    (void)context, (void)reason;
    mbuf_free(buffer);
}

/* A fragment within another, so that there is something of that one before and behind it. */
static bool overlaps(void) {
    struct shunt_frag_config config;
    uint8_t secret[16] = "random, please";
    bool good = false;
    struct shunt_frag_sink sink = {
        .context = &good, .datagram = overlapping_datagram, .release = overlapping_release};
    const struct { int at, more, len; char letter; } parts[3] = {{8, 0, 64, 'B'}, {24, 1, 16, 'C'}, {0, 1, 8, 'A'}};
    shunt_frag_defaults(&config);
    config.overlap = 2; /* the last bytes count */
    config.copy_below = 0;
    struct shunt_frag_ledger *ledger = shunt_frag_ledger_new(&config);
    struct shunt_frag_shard *shard = shunt_frag_new(ledger, secret);
    for (int i = 0; i < 3; i++) {
        struct mbuf *m = mbuf_alloc();
        memset(mbuf_data(m) + 20, parts[i].letter, (size_t)parts[i].len);
        finish(m, 1, parts[i].at, parts[i].more, parts[i].len);
        struct shunt_frag_packet packet = {
            .bytes = mbuf_data(m), .len = m->data_len, .buffer = m, .cost = sizeof m->buf};
        shunt_frag_push(shard, &packet, 1, 0, &sink);
    }
    shunt_frag_free(shard);
    shunt_frag_ledger_free(ledger);
    return good;
}

int main(void) {
    struct shunt_frag_config config;
    uint8_t secrets[CORES + 1][16] = {"draw all three", "of them at", "random, please"};
    pthread_t threads[CORES];
    int whole = 0, wrong = !overlaps(), dropped = 0, handed_over = 0;

    shunt_frag_defaults(&config);
    config.shards = CORES;
    struct shunt_frag_ledger *ledger = shunt_frag_ledger_new(&config);
    steering = shunt_frag_steering_new(secrets[CORES], CORES);
    for (uint32_t n = 0; n < CORES; n++) {
        cores[n].number = n;
        cores[n].shard = shunt_frag_new(ledger, secrets[n]);
    }
    /* The first fragments have ports, and so another hash than the rest. */
    for (int which = 0; which < FRAGMENTS; which++)
        for (int id = 0; id < DATAGRAMS; id++) {
            struct core *core = &cores[which == 0];
            core->queue[core->queued++] = fragment(id, which);
        }
    for (int n = 0; n < CORES; n++)
        if (pthread_create(&threads[n], NULL, run, &cores[n]))
            return 2;
    for (int n = 0; n < CORES; n++) {
        pthread_join(threads[n], NULL);
        whole += cores[n].whole;
        wrong += cores[n].wrong;
        dropped += cores[n].dropped + cores[n].no_room;
        handed_over += cores[n].handed_over;
        shunt_frag_free(cores[n].shard);
    }
    shunt_frag_steering_free(steering);
    shunt_frag_ledger_free(ledger);
    printf("%d datagrams, %d wrong, %d fragments dropped, %d buffers left; handed over: %s\n", whole, wrong,
           dropped, atomic_load(&buffers), handed_over ? "some" : "none");
    return whole == DATAGRAMS && !wrong && !dropped && !atomic_load(&buffers) && handed_over ? 0 : 1;
}
