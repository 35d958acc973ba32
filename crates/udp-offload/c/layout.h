/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* UDP flows that have left user space: what the programs share with truepeer. src/layout.rs asserts the same
 * sizes. Nothing is pinned: programs and tables end with the process. */
#pragma once
#include "lib/base.h"

/* The longest header: v2 with IPv6 addresses and no TLVs. */
#define HEADER_WORDS 13

enum side { SENDER, BACKEND };

struct end {
	struct flow_key key; /* as its datagrams come in */
	__u32 device;        /* by which ours leave to it; 0: not learnt yet */
	__u32 mtu;           /* of the path to it */
	__u8 hops;           /* as one of our sockets sends to it: TTL or hop limit */
	__u8 may_be_cut;     /* by routers: no DF (net.ipv4.ip_no_pmtu_disc) */
	__u8 unused[2];
};

/* On a cache line of its own: each direction has its CPU. */
struct moved {
	__u64 datagrams, bytes;
} __attribute__((aligned(64)));

struct offloaded {
	volatile __u32 is_here;    /* written by truepeer; 0: user space has the flow */
	__u32 header_len;          /* of each of the sender's datagrams; 0: they are bare */
	__u32 is_spp;              /* answers carry the header back */
	__u32 sender_by;           /* the device that the sender's datagrams come in by */
	struct end ends[2];        /* enum side */
	__u32 header[HEADER_WORDS];
	__u32 merged;              /* aggregates of datagrams that have or need headers: they passed */
	struct moved moved[2];     /* of the end's datagrams */
} __attribute__((aligned(64)));

/* Where a key leads: the flow's place, and in the lowest bit the end. */
typedef __u32 place_bits;

/* The mark of a listener's socket in tu_sockets. All other values are places of flows. */
#define LISTENER 0xffffffff

struct pair {
	struct address local, remote;
};

_Static_assert(sizeof(struct end) == 48 && sizeof(struct offloaded) == 320, "src/layout.rs");

/* Not pinned. */
#define PRIVATE(NAME, KIND, SIZE, KEY, VALUE, FLAGS)                                               \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_##KIND);                                                 \
		__uint(max_entries, SIZE);                                                         \
		__uint(map_flags, FLAGS);                                                          \
		__type(key, KEY);                                                                  \
		__type(value, VALUE);                                                              \
	} NAME SEC(".maps")

#define MAX_OFFLOADED 16384

PRIVATE(tu_flows, ARRAY, MAX_OFFLOADED, __u32, struct offloaded, BPF_F_MMAPABLE);

/* Two keys of each flow. That of a sender whose datagrams carry a header has the client's address and port
 * instead of the sender's: a load balancer sends for many. */
PRIVATE(tu_keys, HASH, 2 * MAX_OFFLOADED, struct flow_key, place_bits, 0);

/* truepeer's own sockets, so that others' datagrams are not read on their way out. */
PRIVATE(tu_sockets, SK_STORAGE, 0, int, __u32, BPF_F_NO_PREALLOC);

/* The devices by which listeners' answers leave. */
PRIVATE(tu_senders, LRU_HASH, 4096, struct pair, __u32, 0);

/* Devices that have become ports of others: no route leads by them, though packets still pass them. */
PRIVATE(tu_ports, HASH, 1024, __u32, __u8, 0);

static __always_inline struct offloaded *flow_at(place_bits bits)
{
	__u32 place = bits >> 1;

	return bpf_map_lookup_elem(&tu_flows, &place);
}
