/* Puts IPv4 and IPv6 fragments together, within a fixed budget of memory and time.
 *
 * Made from crates/frag-c/src by cbindgen: change it there. How to build and link it, and how it takes
 * the place of rte_ipv4_frag_reassemble_packet, says crates/frag-c/README.md. How to use it is shown by examples/defrag.c;
 * with several cores, and with packets as chains of buffers, by examples/mbufs.c. */

#ifndef SHUNT_FRAG_H
#define SHUNT_FRAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What `shunt_frag_steer` answers of what belongs to no shard.
#define SHUNT_FRAG_NO_SHARD 4294967295

// Memory that shards share.
struct shunt_frag_ledger;

// What one core owns. Not to be used by two threads at once.
struct shunt_frag_shard;

// Which shard the fragments of a datagram go to: the same on every core. May be used by all at once.
struct shunt_frag_steering;

// What may be set. Fill it with `shunt_frag_defaults` first.
struct shunt_frag_config {
  // Most memory that fragments may hold over all shards, bytes. Never exceeded; what each shard has beside it, the
  // same whatever comes, says `shunt_frag_beside_bytes`.
  uint64_t memory_bytes;
  // Shards (cores) that share it.
  uint32_t shards;
  // Most datagrams in progress over all shards.
  uint32_t datagrams_max;
  // Most fragments of one datagram.
  uint16_t fragments_max;
  // Payload bytes that a fragment which is not the last must have.
  uint16_t fragment_min;
  // Payloads smaller than this are copied, so that they do not pin a buffer; 0: never.
  uint16_t copy_below;
  // What to do where fragments overlap: 0 give the datagram up (RFC 5722), 1 first, 2 last, 3 bsd,
  // 4 bsd-right, 5 linux, 6 windows, 7 solaris.
  uint16_t overlap;
  // How long a datagram may take from its first fragment on, nanoseconds, IPv4.
  uint64_t timeout_v4_ns;
  // IPv6.
  uint64_t timeout_v6_ns;
  // Whether a first fragment of IPv6 must hold all headers up to that of the transport (RFC 7112).
  bool whole_header;
};

// A packet that has come in.
struct shunt_frag_packet {
  // Its bytes from the IP header on. Padding of the link may follow.
  const uint8_t *bytes;
  // How many.
  size_t len;
  // The caller's handle for where they are; a packet whose handle is null is passed over. They must stay there until it is
  // released.
  void *buffer;
  // Memory that keeping the buffer costs, bytes: the size of the frame, not of the packet.
  uint32_t cost;
  // VLAN, VRF, channel: fragments of two scopes never meet.
  uint64_t scope;
};

// Some bytes of a datagram's payload.
struct shunt_frag_slice {
  // The caller's buffer where they are; null if they were copied. With an `overlap` other than 0 other slices of the
  // datagram may be of the same buffer: what is between them came in another fragment.
  void *buffer;
  // In a buffer: offset from the packet's first byte.
  size_t at;
  // They were copied if this is not null, and are here during the call.
  const uint8_t *bytes;
  // How many.
  size_t len;
};

// A complete datagram, valid during the call that hands it out.
struct shunt_frag_datagram {
  // The IP header to use.
  const uint8_t *header;
  // Its bytes.
  size_t header_len;
  // Bytes of payload behind it.
  size_t payload_len;
  // Where those are, in order.
  const struct shunt_frag_slice *slices;
  // How many slices.
  size_t slice_count;
  // Fragments that it came in.
  uint16_t fragments;
};

// A message that a host or router should send, if it sends such messages and has not sent too many. Valid
// during the call that hands it out.
struct shunt_frag_notice {
  // Of the packet that it is about, and of the message: 4 or 6.
  uint8_t version;
  // Type of the message: time exceeded (11, of ICMPv6 3) or parameter problem (12, of ICMPv6 4).
  uint8_t icmp_type;
  // Its code.
  uint8_t icmp_code;
  // Of a parameter problem: the byte of the packet that is wrong. Else 0.
  uint32_t pointer;
  // The header of the first fragment, or of the fragment that no datagram can have, to quote from.
  const uint8_t *header;
  // Its bytes.
  size_t header_len;
  // The caller's buffer with that fragment, not released yet; null if its payload was copied.
  void *buffer;
  // The payload was copied if this is not null, and is here during the call.
  const uint8_t *bytes;
  // How many bytes of it.
  size_t len;
};

// Where a shard says what it has done. All functions are called from within `shunt_frag_push`,
// `shunt_frag_expire` and `shunt_frag_clear`, and must not call any function with the shard that calls.
struct shunt_frag_sink {
  // Handed to each function.
  void *context;
  // A packet that is no fragment; `len` of its bytes belong to it.
  void (*whole)(void*, void*, size_t);
  // A datagram is complete. Its buffers are released after this returns.
  void (*datagram)(void*, const struct shunt_frag_datagram*);
  // A buffer is free again. The last argument is 0 when its datagram was handed out or its bytes were
  // copied, else the reason for which it was dropped: see `shunt_frag_reason`.
  void (*release)(void*, void*, uint8_t);
  // A message of ICMP is to be sent.
  void (*notice)(void*, const struct shunt_frag_notice*);
};

// What a shard has seen and done.
struct shunt_frag_counters {
  // Packets that were no fragments.
  uint64_t whole;
  // Fragments, good or bad.
  uint64_t fragments;
  // Datagrams put together.
  uint64_t datagrams;
  // Bytes of payload in those.
  uint64_t bytes;
  // Datagrams in progress.
  uint64_t in_progress;
  // Bytes of memory in use by them.
  uint64_t memory_bytes;
  // Fragments dropped on their own, by number of the reason.
  uint64_t fragments_dropped[32];
  // Datagrams given up, by number of the reason.
  uint64_t datagrams_dropped[32];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Fills in the settings that suit a host.
//
// # Safety
//
// `config` is valid for writing.
void shunt_frag_defaults(struct shunt_frag_config *config);

// Says why `shunt_frag_ledger_new` would answer null: writes it to `why`, of which `room` bytes are there, with a zero
// at its end, and cut if it is longer. Answers how many bytes all of it has, without the zero; 0: all settings can be.
//
// # Safety
//
// `config` is valid for reading, `why` for writing `room` bytes; it may be null if `room` is 0.
size_t shunt_frag_check(const struct shunt_frag_config *config,
                        char *why,
                        size_t room);

// Memory for as many shards as `config` says. Null: a setting cannot be; `shunt_frag_check` says which. Never freed
// before its shards.
//
// # Safety
//
// `config` is valid for reading.
struct shunt_frag_ledger *shunt_frag_ledger_new(const struct shunt_frag_config *config);

// The most memory that each shard of a ledger ever takes beside the `memory_bytes` of them all, bytes: to remember
// sources and what was refused, and for the first datagrams. The same whatever comes.
//
// # Safety
//
// `ledger` came from `shunt_frag_ledger_new`.
uint64_t shunt_frag_beside_bytes(const struct shunt_frag_ledger *ledger);

// Frees the caller's hold on a ledger. Null does nothing.
//
// # Safety
//
// `ledger` came from `shunt_frag_ledger_new` and is not used again.
void shunt_frag_ledger_free(struct shunt_frag_ledger *ledger);

// A new shard. `secret`: 16 bytes, drawn at random for each shard.
//
// # Safety
//
// `ledger` came from `shunt_frag_ledger_new`; `secret` is valid for reading 16 bytes.
struct shunt_frag_shard *shunt_frag_new(const struct shunt_frag_ledger *ledger,
                                        const uint8_t *secret);

// Frees a shard. What it holds is not released: call `shunt_frag_clear` first. Null does nothing.
//
// # Safety
//
// `shard` came from `shunt_frag_new`, none of its calls of a `Sink` is under way, and it is not used again.
void shunt_frag_free(struct shunt_frag_shard *shard);

// For programs of several cores to which the fragments of a datagram may come, as where a card hashes ports:
// each core asks whose a fragment is, and hands it to that core by a ring of its own. `secret`: 16 bytes,
// drawn at random, another than that of any shard. `shards`: how many; with 0 it is 1.
//
// # Safety
//
// `secret` is valid for reading 16 bytes.
struct shunt_frag_steering *shunt_frag_steering_new(const uint8_t *secret,
                                                    uint32_t shards);

// Frees it. Null does nothing.
//
// # Safety
//
// `steering` came from `shunt_frag_steering_new` and is not used again.
void shunt_frag_steering_free(struct shunt_frag_steering *steering);

// The number of the shard that a fragment goes to, from 0 on. `SHUNT_FRAG_NO_SHARD`: it is no fragment, or
// makes no sense, and may be pushed where it came in. `bytes` from the IP header on, `len` of them; `scope`
// as in `shunt_frag_packet`.
//
// # Safety
//
// `steering` came from `shunt_frag_steering_new`; `bytes` is valid for reading `len` bytes, or null, which is no fragment.
uint32_t shunt_frag_steer(const struct shunt_frag_steering *steering,
                          const uint8_t *bytes,
                          size_t len,
                          uint64_t scope);

// Takes in packets. `now_ns`: nanoseconds of a clock that does not go back.
//
// # Safety
//
// `shard` came from `shunt_frag_new`, `packets` are `count` valid packets, whose bytes stay as they are
// until their buffer is released, and `sink` is valid.
void shunt_frag_push(struct shunt_frag_shard *shard,
                     const struct shunt_frag_packet *packets,
                     size_t count,
                     uint64_t now_ns,
                     const struct shunt_frag_sink *sink);

// Gives up datagrams that have taken too long, at most `most`. Answers when the next one's time ends;
// `UINT64_MAX`: there is none.
//
// # Safety
//
// As `shunt_frag_push`.
uint64_t shunt_frag_expire(struct shunt_frag_shard *shard,
                           uint64_t now_ns,
                           size_t most,
                           const struct shunt_frag_sink *sink);

// Gives up all datagrams in progress, and releases what they hold.
//
// # Safety
//
// As `shunt_frag_push`.
void shunt_frag_clear(struct shunt_frag_shard *shard,
                      uint64_t now_ns,
                      const struct shunt_frag_sink *sink);

// What a shard has seen and done.
//
// # Safety
//
// `shard` came from `shunt_frag_new`, and none of its calls of a `Sink` is under way; `counters` is valid for writing.
void shunt_frag_count(const struct shunt_frag_shard *shard,
                      struct shunt_frag_counters *counters);

// A reason in words; null: there is no reason of that number.
const char *shunt_frag_reason(uint8_t number);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SHUNT_FRAG_H */
