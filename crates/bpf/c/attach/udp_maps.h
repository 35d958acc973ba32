/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The tables of UDP in one network namespace.
 *
 *   tp_udp_ports  what senders send to
 *   tp_backends   what backends are bound to: answers come from there
 *   tp_udp_flows  client, as the backend names it -> sender
 *   tp_udp_slots  an answer on its way from udp_send to udp_egress
 *   tp_udp_named  sender -> client, where only a flow's first datagram has a header
 *
 * Each has a fixed size, so no flood makes them grow. docs/internals/attach-udp.md says what they take. */
#pragma once
#include "attach/maps.h"

TABLE(tp_udp_ports, HASH, MAX_PORTS, __be16, struct udp_port, BPF_F_NO_PREALLOC);

TABLE(tp_backends, HASH, MAX_PORTS, __be16, struct backend, BPF_F_NO_PREALLOC);

/* LRU: the next datagram recreates a forgotten flow. max_entries is --max-udp-flows. */
TABLE(tp_udp_flows, LRU_HASH, 2048, struct udp_key, struct udp_flow, 0);

/* LRU, too, but a forgotten sender's datagrams are dropped until it sends a header. As large as
 * tp_udp_flows. */
TABLE(tp_udp_named, LRU_HASH, 2048, struct flow_key, struct udp_named, 0);

#define SECOND_NS 1000000000ULL

/* Whether `seen_ns` was longer ago than a sender of this attachment may be silent: the client may now send
 * by itself, and the sender's port may be another client's. */
static __always_inline int is_long_ago(__u64 seen_ns, __u32 group)
{
	struct terms *terms = bpf_map_lookup_elem(&tp_terms, &group);
	__s64 silence_ns = bpf_ktime_get_coarse_ns() - seen_ns;

	return terms && terms->udp_silence_s && silence_ns > (__s64)(terms->udp_silence_s * SECOND_NS);
}

/* The flow of an answer from the address `from`; `key->local` becomes its key. A socket on a wildcard address
 * answers from none (0), and a socket on the loopback from an address that the client's datagrams did not
 * use: both answer the client's newest flow. */
static __always_inline struct udp_flow *find_udp_flow(struct udp_key *key, const struct address *from)
{
	key->local = (struct address){};
	struct udp_flow *newest = bpf_map_lookup_elem(&tp_udp_flows, key);

	if (!is_no_address(from) && !(newest && is_same_address(&newest->local, from))) {
		key->local = *from;
		struct udp_flow *other = bpf_map_lookup_elem(&tp_udp_flows, key);
		if (other && !is_long_ago(other->seen_ns, other->group))
			return other;
		key->local = (struct address){};
	}
	return newest && !is_long_ago(newest->seen_ns, newest->group) ? newest : 0;
}

/* Copies the flow of an answer. 0: there is none.
 *
 * An entry of an LRU table may be reused for another client as soon as it is forgotten, even while it is read
 * here. Each write has its own version, and an entry is written before it is found under its key. So if the
 * entry under the key has the same version after the copy, it was not written meanwhile, and the copy is
 * valid. */
static __always_inline struct udp_flow *copy_udp_flow(struct udp_key *key, const struct address *from,
						      struct udp_flow *copy)
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
