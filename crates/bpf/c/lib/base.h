/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What all programs share: verdicts, addresses, and the key of a connection. */
#pragma once
#include <linux/bpf.h>
#include <linux/stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10

/* Lets the next programs decide (TCX_NEXT, TC_ACT_UNSPEC): truepeer never accepts a packet on their
 * behalf. */
#define PASS (-1)
#define DROP 2 /* TC_ACT_SHOT */

/* Global functions (not static): the verifier checks them once, for all arguments, instead of at each call.
 * It assumes that their pointer arguments may be NULL. */
#define GLOBAL __attribute__((noinline))

/* A pinned table. */
#define TABLE(NAME, KIND, SIZE, KEY, VALUE, FLAGS)                                                           \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_##KIND);                                                           \
		__uint(max_entries, SIZE);                                                                   \
		__uint(map_flags, FLAGS);                                                                    \
		__type(key, KEY);                                                                            \
		__type(value, VALUE);                                                                        \
		__uint(pinning, LIBBPF_PIN_BY_NAME);                                                         \
	} NAME SEC(".maps")

/* A CPU's memory for what is too large for the stack, or whose values the verifier need not track: of a table
 * it knows only the bounds. */
#define SCRATCH(NAME, VALUE)                                                                                 \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                                     \
		__uint(max_entries, 1);                                                                      \
		__type(key, __u32);                                                                          \
		__type(value, VALUE);                                                                        \
	} NAME SEC(".maps")

/* The entry of a table that has one. */
#define ONLY_ENTRY(NAME)                                                                                     \
	({                                                                                                   \
		__u32 only = 0;                                                                              \
		bpf_map_lookup_elem(&NAME, &only);                                                           \
	})

/* IPv4 is written as ::ffff:a.b.c.d everywhere, so one key serves both families. */
struct address {
	__be32 word[4];
};

struct endpoint {
	struct address address;
	__be16 port;
	__u16 zero;
};

/* Word by word: the verifier wants each field of a context read and written by itself. */
#define COPY_IPV6(TO, FROM)                                                                            \
	((TO)[0] = (FROM)[0], (TO)[1] = (FROM)[1], (TO)[2] = (FROM)[2], (TO)[3] = (FROM)[3])

static __always_inline int is_same_address(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

#define MAPPED bpf_htonl(0xffff)

struct prefix {
	__u32 bits; /* of 128 */
	struct address address;
};

static __always_inline void map_ipv4(struct address *address, __be32 ipv4)
{
	*address = (struct address){ .word = { 0, 0, MAPPED, ipv4 } };
}

static __always_inline int is_ipv4(const struct address *address)
{
	return !address->word[0] && !address->word[1] && address->word[2] == MAPPED;
}

static __always_inline int is_no_address(const struct address *address)
{
	return !(address->word[0] | address->word[1] | address->word[2] | address->word[3]);
}

/* 127.0.0.0/8 or ::1. */
static __always_inline int is_loopback(const struct address *address)
{
	if (address->word[0] || address->word[1])
		return 0;
	if (address->word[2] == MAPPED)
		return (bpf_ntohl(address->word[3]) >> 24) == 127;
	return !address->word[2] && address->word[3] == bpf_htonl(1);
}

/* A connection as packets identify it. */
struct flow_key {
	struct address remote;
	struct address local;
	__be16 remote_port;
	__be16 local_port;
};

static __always_inline int is_same_key(const struct flow_key *one, const struct flow_key *other)
{
	return is_same_address(&one->remote, &other->remote) && is_same_address(&one->local, &other->local) &&
	       one->remote_port == other->remote_port && one->local_port == other->local_port;
}

_Static_assert(sizeof(struct prefix) == 20 && sizeof(struct flow_key) == 36, "src/layout.rs");

/* The unit of the kernel's timestamps. */
static __always_inline __u32 milliseconds(void)
{
	return bpf_ktime_get_ns() / 1000000;
}
