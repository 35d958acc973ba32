/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The tables of sessions that are being made. Once the backend has answered, a session is in the tables of
 * spliced flows. */
#pragma once
#include "offload/full_layout.h"
#include "lib/policy.h"
#include "offload/maps.h"

/* The group in tp_denied that lists this host's own addresses (src/full/listeners.rs). */
#define OWN_ADDRESSES (MAX_GROUPS - 1)

enum full_counter {
	SYN_ANSWERED,      /* with a cookie */
	HEADER_TAKEN,      /* a SYN went to the backend */
	HEADER_REPEATED,   /* the SYN went to the backend again */
	BEGUN,             /* a session has begun */
	TO_TRUEPEER,       /* truepeer's listener took the connection */
	BACKEND_SAID_NO,   /* the backend sent a reset: truepeer connects instead */
	BACKEND_DIFFERS,   /* the backend lacks an option that the sender was promised: likewise */
	NO_PLACE,          /* no place was left for the flow: likewise */
	TUPLE_TAKEN,       /* the client's address and port are in use: truepeer follows --on-conflict */
	TOO_EARLY,         /* dropped: the segment before it is missing, or the dial is busy; both come again */
	NOT_OURS,          /* dropped: a wrong number, damaged, or of no connection */
	LEARNT_BACKEND,
	FULL_FAILED,       /* a helper of the kernel failed: TCP sends again */
	/* Why a SYN is left to truepeer's listener: */
	OTHER_RULE,        /* the sender may not send, or need not send a header */
	BACKEND_UNKNOWN,   /* truepeer has not connected to it within a minute */
	SENDER_UNKNOWN,    /* not by which device it is answered, or it is another one */
	OTHER_OPTIONS,     /* no timestamps, SACK or window scaling; or options that change the handshake */
	NOT_CLEAR,         /* why a header is left to it: it is not whole, or leaves something to decide */
	FULL_COUNTERS,
};

TABLE(tf_listeners, HASH, 1024, struct full_port, struct full_listener, 0);

/* truepeer adds an entry for each backend; the programs fill it in. */
TABLE(tf_backends, HASH, 128, struct full_endpoint, struct full_backend, 0);

TABLE(tf_senders, LRU_HASH, 16384, struct address, struct full_sender, 0);

#define MAX_DIALS 4096

/* A dial begins only when a sender has proved its address and sent a good header, and lasts one round trip to
 * the backend. If it is forgotten, it begins anew when the sender repeats its header. */
TABLE(tf_dials, ARRAY, MAX_DIALS, __u32, struct dial, 0);

/* A quarter of the slots is in use at most. */
#define DIAL_BUCKETS (MAX_DIALS / 2)

/* Slots lead to dials: the sender's key to 2 * place, the backend's to 2 * place + 1. They change under the
 * dial's lock. */
TABLE(tf_dialled, ARRAY, DIAL_BUCKETS, __u32, struct key_bucket, BPF_F_MMAPABLE);

/* Where new_dial() last looked for a place. */
TABLE(tf_newest, ARRAY, 1, __u32, __u32, 0);

/* When truepeer last looked. After it was killed, another program may have its port, so the programs stop
 * answering. */
TABLE(tf_looked, ARRAY, 1, __u32, __u64, 0);

TABLE(tf_places, ARRAY, 1, __u32, struct full_places, BPF_F_MMAPABLE);

/* `full_secret` of the programs that use these tables, for the process that takes truepeer's place: its
 * programs know the cookies of these. */
TABLE(tf_secret, ARRAY, 2, __u32, __u64, 0);

TABLE(tf_counters, PERCPU_ARRAY, FULL_COUNTERS, __u32, __u64, 0);

static __always_inline void count_full(enum full_counter counter)
{
	count_in(&tf_counters, counter);
}

static __always_inline int drop_full(enum full_counter reason)
{
	return drop_in(&tf_counters, reason);
}

static __always_inline int pass_full(enum full_counter reason)
{
	return pass_in(&tf_counters, reason);
}

static __always_inline struct full_listener *listener_at(const struct address *address, __be16 port,
							 __u8 version)
{
	struct full_port key = { .port = port, .version = version };
	struct full_listener *listener = bpf_map_lookup_elem(&tf_listeners, &key);

	if (!listener || listener->is_any)
		return listener;
	return is_same_address(&listener->address, address) ? listener : 0;
}

static __always_inline struct full_backend *backend_at(const struct address *address, __be16 port)
{
	struct full_endpoint key = { .address = *address, .port = port };
	return bpf_map_lookup_elem(&tf_backends, &key);
}

static __always_inline struct full_places *lent_places(void)
{
	return ONLY_ENTRY(tf_places);
}

static __always_inline int has_place(void)
{
	const volatile struct full_places *lent = lent_places();
	return lent && lent->begin != lent->end;
}

#define PLACE_TRIES 16

/* truepeer takes a place back after some seconds if no flow stands there. Nonzero: there is none. */
static __always_inline int take_place(__u32 *place)
{
	struct full_places *lent = lent_places();

	if (!lent)
		return -1;
	__u32 begin = *(volatile __u32 *)&lent->begin;

	for (__u32 i = 0; i < PLACE_TRIES && begin != *(volatile __u32 *)&lent->end; i++) {
		/* Exchanges nothing, but is a full barrier: the place is not read before `end`. */
		__u32 found = __sync_val_compare_and_swap(&lent->begin, begin, begin);
		__u32 candidate = *(volatile __u32 *)&lent->places[begin % LENT_PLACES];

		/* While `begin` stands, truepeer does not overwrite the place. */
		if (found == begin)
			found = __sync_val_compare_and_swap(&lent->begin, begin, begin + 1);
		if (found == begin) {
			*place = candidate;
			return 0;
		}
		begin = found;
	}
	return -1;
}
