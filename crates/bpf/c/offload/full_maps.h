/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The tables of sessions that are being made. Once the backend has answered, a session is in the tables of spliced flows. */
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct full_port);
	__type(value, struct full_listener);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_listeners SEC(".maps");

/* truepeer adds an entry for each backend; the programs fill it in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, struct full_endpoint);
	__type(value, struct full_backend);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct full_sender);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_senders SEC(".maps");

#define MAX_DIALS 4096

/* A dial begins only when a sender has proved its address and sent a good header, and lasts one round trip to the backend. If it is forgotten, it
 * begins anew when the sender repeats its header. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_DIALS);
	__type(key, __u32);
	__type(value, struct dial);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_dials SEC(".maps");

/* A quarter of the slots is in use at most. */
#define DIAL_BUCKETS (MAX_DIALS / 2)

/* Slots lead to dials: the sender's key to 2 * place, the backend's to 2 * place + 1. They change under the dial's lock. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DIAL_BUCKETS);
	__type(key, __u32);
	__type(value, struct key_bucket);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_dialled SEC(".maps");

/* Where new_dial() last looked for a place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_newest SEC(".maps");

/* When truepeer last looked. After it was killed, another program may have its port, so the programs stop answering. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_looked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct full_places);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_places SEC(".maps");

/* `full_secret` of the programs that use these tables, for the process that takes truepeer's place: its programs know the cookies of these. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_secret SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FULL_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_counters SEC(".maps");

static __always_inline void mark_down(enum full_counter counter)
{
	__u32 index = counter;
	__u64 *value = bpf_map_lookup_elem(&tf_counters, &index);
	if (value)
		*value += 1;
}

static __always_inline int lose_for(enum full_counter reason)
{
	mark_down(reason);
	return DROP;
}

/* The other end's key of the same connection. */
static __always_inline struct flow_key turned_key(const struct flow_key *key)
{
	return (struct flow_key){
		.remote = key->local,
		.local = key->remote,
		.remote_port = key->local_port,
		.local_port = key->remote_port,
	};
}

static __always_inline struct full_listener *listener_at(const struct address *address, __be16 port, __u8 version)
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
	__u32 only = 0;
	return bpf_map_lookup_elem(&tf_places, &only);
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
