/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The spliced flows of one network namespace. Pinned: they outlive truepeer, whose next start finds them
 * again. */
#pragma once
#include "lib/metrics.h"
#include "offload/key_table.h"
#include "offload/layout.h"

#define MAX_SPLICED 65536
/* Half of the places: a quarter of the slots is in use at most. */
#define KEY_BUCKETS (MAX_SPLICED / 2)

enum splice_counter {
	SEGMENTS_TRANSLATED,
	COPIES_TO_SOCKET,    /* of segments whose acknowledgement our socket still needs */
	KEPT_FOR_SOCKET,     /* from before the cut */
	NOT_JUDGED_GOOD,     /* a kernel's socket would not take it, so nothing was learnt */
	DAMAGED,             /* a wrong sum where something would have been learnt */
	SYN_ASKED,           /* a SYN in the middle: not translated, answered with an ACK (RFC 5961) */
	SYN_DROPPED,         /* likewise, asked a moment ago */
	SYN_NEW,             /* the addresses are used by a new connection */
	RESETS,              /* that end a flow */
	RESET_UNDONE,        /* the other side went on: it did not believe the reset */
	OWN_RESETS_DROPPED,  /* by which the kernel would answer for a connection that it no longer knows */
	OWN_RAISED,          /* our sockets' segments that say the newest of what was translated */
	STALE_COPIES,        /* for a socket that is closed, or with another mark than ours */
	BEYOND_EDGE,         /* a peer has sent more than the other one takes */
	OWN_HELD,            /* our sockets' segments that offer less, so that nobody does */
	OWN_RESETS,          /* our sockets' resets after the cut */
	ERRORS_TRANSLATED,   /* ICMP errors about translated segments */
	ERRORS_DROPPED,      /* likewise, about a segment that is not under way: made up, or late */
	TOO_LONG,            /* too long for the other side's device: answered as a router does */
	SPLICE_FAILED,       /* a helper of the kernel failed; TCP sends again */
	SPLICE_COUNTERS,
};

/* The keys of both connections of each flow. A slot's lower bits are a struct splice_place. */
TABLE(ts_keys, ARRAY, KEY_BUCKETS, __u32, struct key_bucket, BPF_F_MMAPABLE);

/* Mapped into truepeer's memory: it moves a flow from one stage to the next by one store, for both directions
 * at once. */
TABLE(ts_flows, ARRAY, MAX_SPLICED, __u32, struct spliced, BPF_F_MMAPABLE);

/* Our sockets know their flow, so that others' segments are not read on their way out. Goes with the
 * socket. */
TABLE(ts_sockets, SK_STORAGE, 0, int, struct splice_place, BPF_F_NO_PREALLOC);

TABLE(ts_counters, PERCPU_ARRAY, SPLICE_COUNTERS, __u32, __u64, 0);

static __always_inline void count(enum splice_counter counter)
{
	count_in(&ts_counters, counter);
}

static __always_inline int drop(enum splice_counter reason)
{
	return drop_in(&ts_counters, reason);
}

static __always_inline struct spliced *flow_at(const struct splice_place *place)
{
	__u32 index = place->bits >> 1;
	return bpf_map_lookup_elem(&ts_flows, &index);
}

static __always_inline const struct flow_key *key_of_flow(__u32 bits)
{
	struct splice_place place = { .bits = bits };
	struct spliced *flow = flow_at(&place);
	return flow ? &flow->faces[bits & 1].key : 0;
}

#define LAST_KEY_BUCKET(secret) ((secret)->last_bucket)
KEY_TABLE(slot_of_flow, enter_key, remove_key, ts_keys, LAST_KEY_BUCKET, key_of_flow)

/* Nonzero: no flow has this key. */
static __always_inline int find_place(const struct flow_key *key, struct splice_place *place)
{
	__u32 slot = slot_of_flow(key);

	place->bits = slot & SLOT_MASK;
	return !slot;
}

/* Moves a flow on unless somebody else has moved it meanwhile. */
static __always_inline int move_stage(struct spliced *flow, __u32 from, __u32 to)
{
	return __sync_val_compare_and_swap((__u32 *)&flow->stage, from, to) == from;
}

/* A new connection uses the flow's addresses: remove its keys. */
static __always_inline int make_room(struct spliced *flow, __u32 stage, const struct splice_place *place)
{
	__u32 down = place->bits & ~1U;

	if (!move_stage(flow, stage, SPLICE_GONE))
		return 0;
	remove_key(&flow->faces[0].key, down);
	remove_key(&flow->faces[1].key, down | 1);
	count(SYN_NEW);
	return 1;
}

static __always_inline void clear(struct face *face, __u32 what)
{
	if (face->known & what)
		__sync_fetch_and_and((__u32 *)&face->known, ~what);
}

static __always_inline void note(struct face *face, __u32 what)
{
	if (!(face->known & what))
		__sync_fetch_and_or((__u32 *)&face->known, what);
}
