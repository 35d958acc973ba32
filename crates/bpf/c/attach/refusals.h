/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Writes refusals, and connections whose server is shown the sender, with their reasons, into a ring
 * buffer, which `truepeer attach status --follow` reads. Writing never waits, and the buffer never grows.
 * At most REFUSALS_PER_SECOND of a reason are written in a second; the next one says how many were left
 * out. So a flood costs no more than counting it. */
#pragma once
#include "attach/counters.h"

#define REFUSALS_PER_SECOND 10
#define UNLISTED_PER_SECOND 1 /* HEADER_UNLISTED: everybody can cause it, not only listed senders */

struct refusal {
	__u64 time_ns; /* since the boot */
	struct address sender;
	struct address client; /* that the header claims */
	__u32 count;           /* this one, and those of the same reason that were not told before it */
	__be16 sender_port;    /* 0: unknown */
	__be16 client_port;
	__be16 port;
	__u8 reason;           /* enum counter */
	__u8 protocol;
	__u8 client_version;   /* 4 or 6; 0: it claims none, or was not read */
	__u8 unused[7];
};

_Static_assert(sizeof(struct refusal) == 64, "src/refusals.rs");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16384);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_refusals SEC(".maps");

/* What was told of a reason. */
struct told {
	__u64 since_ns;
	__u32 count;  /* since then */
	__u32 missed; /* not told yet */
};

TABLE(tp_told, ARRAY, COUNTERS, __u32, struct told, 0);

/* `key`: from the sender to this host. `claimed`: what the header says; NULL: nothing. */
GLOBAL int tell(const struct flow_key *key, __u32 protocol, __u32 reason, const struct flow *claimed)
{
	struct told *told = bpf_map_lookup_elem(&tp_told, &reason);
	__u64 now = bpf_ktime_get_ns();
	__u32 limit = reason == HEADER_UNLISTED ? UNLISTED_PER_SECOND : REFUSALS_PER_SECOND;

	if (!key || !told)
		return 0;
	/* Two processors may both begin a second: then a few more are told. */
	if (now - told->since_ns >= 1000000000) {
		told->since_ns = now;
		told->count = 0;
	}
	struct refusal *refusal = 0;
	/* Counted before it is tried: while nobody reads and the ring is full, trying would take its lock
	 * each time. */
	if (told->count < limit && __sync_fetch_and_add(&told->count, 1) < limit)
		refusal = bpf_ringbuf_reserve(&tp_refusals, sizeof(*refusal), 0);
	if (!refusal) {
		__sync_fetch_and_add(&told->missed, 1);
		return 0;
	}
	__builtin_memset(refusal, 0, sizeof(*refusal));
	refusal->time_ns = now;
	refusal->count = 1 + __sync_lock_test_and_set(&told->missed, 0);
	refusal->sender = key->remote;
	refusal->sender_port = key->remote_port;
	refusal->port = key->local_port;
	refusal->reason = reason;
	refusal->protocol = protocol;
	if (claimed && claimed->client_version) {
		refusal->client = claimed->client;
		refusal->client_port = claimed->client_port;
		refusal->client_version = claimed->client_version;
	}
	bpf_ringbuf_submit(refusal, 0);
	return 0;
}
