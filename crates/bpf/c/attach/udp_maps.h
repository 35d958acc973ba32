/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The tables of UDP in one network namespace.
 *
 *   tp_udp_ports     what senders send to
 *   tp_backends  what backends are bound to: answers come from there
 *   tp_udp_flows client, as the backend names it -> sender
 *   tp_udp_slots an answer on its way from udp_send to udp_egress
 *
 * Each has a fixed size, so no flood makes them grow. docs/internals/attach-udp.md says what they take. */
#pragma once
#include "attach/maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be16);
	__type(value, struct udp_port);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_udp_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be16);
	__type(value, struct backend);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_backends SEC(".maps");

/* LRU: the next datagram recreates a forgotten flow. max_entries is --max-udp-flows. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct udp_key);
	__type(value, struct udp_flow);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_udp_flows SEC(".maps");

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

#define SECOND_NS 1000000000ULL

/* The sender has sent nothing for this client for so long that the client may now send by itself. A flow's
 * last datagram is noted with a resolution of one second. */
static __always_inline int is_silent(const struct udp_flow *flow)
{
	__u32 group = flow->group;
	struct terms *terms = bpf_map_lookup_elem(&tp_terms, &group);

	if (!terms || !terms->udp_silence_s)
		return 0;
	__s64 silence_ns = bpf_ktime_get_coarse_ns() - flow->seen_ns;
	return silence_ns > (__s64)((terms->udp_silence_s + 1ULL) * SECOND_NS);
}

/* The flow of an answer from the address `from`; `key->local` becomes its key. A socket on a wildcard address
 * answers from none (0), and a socket on the loopback from an address that the client's datagrams did not use:
 * both answer the client's newest flow. */
static __always_inline struct udp_flow *find_udp_flow(struct udp_key *key, const struct address *from)
{
	key->local = (struct address){};
	struct udp_flow *newest = bpf_map_lookup_elem(&tp_udp_flows, key);

	if (!is_no_address(from) && !(newest && is_same_address(&newest->local, from))) {
		key->local = *from;
		struct udp_flow *other = bpf_map_lookup_elem(&tp_udp_flows, key);
		if (other && !is_silent(other))
			return other;
		key->local = (struct address){};
	}
	return newest && !is_silent(newest) ? newest : 0;
}

/* Copies the flow of an answer. 0: there is none.
 *
 * An entry of an LRU table may be reused for another client as soon as it is forgotten, even while it is read
 * here. Each write has its own version, and an entry is written before it is found under its key. So if the
 * entry under the key has the same version after the copy, it was not written meanwhile, and the copy is
 * valid. */
static __always_inline struct udp_flow *copy_udp_flow(struct udp_key *key, const struct address *from, struct udp_flow *copy)
{
	struct udp_flow *flow = find_udp_flow(key, from);
	if (!flow)
		return 0;
	__u64 version = *(volatile __u64 *)&flow->version;
	asm volatile("" : : : "memory");
	*copy = *flow;
	asm volatile("" : : : "memory");
	flow = bpf_map_lookup_elem(&tp_udp_flows, key);
	return flow && flow->version == version ? flow : 0;
}
