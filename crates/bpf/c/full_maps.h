/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The tables of sessions that the kernel makes. Beside those of spliced flows, in which such a session ends. */
#pragma once
#include "full_layout.h"
#include "lists.h"
#include "splice_maps.h"

/* Their group in tp_denied (src/full/listeners.rs). */
#define OWN_ADDRESSES (MAX_GROUPS - 1)

enum full_counter {
	SYN_ANSWERED,      /* by a cookie */
	HEADER_TAKEN,      /* and the backend asked */
	HEADER_REPEATED,   /* the backend is asked again */
	BEGUN,             /* a session */
	TO_TRUEPEER,       /* its listener takes the connection */
	BACKEND_SAID_NO,   /* by a reset: then truepeer asks it */
	BACKEND_DIFFERS,   /* it does not agree to what the sender was promised: then truepeer asks it */
	NO_PLACE,          /* for another flow: likewise */
	TUPLE_TAKEN,       /* the client's address and port are in use: truepeer knows what to do */
	TOO_EARLY,         /* what comes before it is missing: the sender sends both again */
	NOT_OURS,          /* a wrong number, damaged, or for nobody: dropped */
	LEARNT_BACKEND,
	FULL_FAILED,       /* a helper of the kernel failed; TCP sends again */
	FULL_COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct full_port);
	__type(value, struct full_listener);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_listeners SEC(".maps");

/* Written by truepeer: an entry for each backend. */
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

/* Only connections whose sender has proved its address and has sent a good header are here, and each for one round trip to the backend. A
 * forgotten one begins anew when the sender repeats its header. */
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

/* Where a place was last looked for. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tf_newest SEC(".maps");

/* When truepeer last looked: of a process that was killed, the listener may be another's by now. */
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
		.sender = key->local,
		.local = key->sender,
		.sender_port = key->local_port,
		.local_port = key->sender_port,
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

/* A place that is not used after all is truepeer's again after some seconds. Nonzero: there is none. */
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
