/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Stores flows: what udp_ingress learns from a datagram for its answers. */
#pragma once
#include "attach/udp_slots.h" /* counts the versions */

/* The entry of a client and an address of this host. */
struct known {
	struct udp_flow *flow; /* NULL: nothing */
	int is_newest;         /* of that client, to whatever address */
};

/* `key->local` is the datagram's destination, and stays. */
static __always_inline void find_known(struct udp_key *key, struct known *known)
{
	struct address local = key->local;

	key->local = (struct address){};
	known->flow = bpf_map_lookup_elem(&tp_udp_flows, key);
	key->local = local;
	known->is_newest = known->flow && is_same_address(&known->flow->local, &local);
	if (known->flow && !known->is_newest)
		known->flow = bpf_map_lookup_elem(&tp_udp_flows, key);
}

static __always_inline int is_same_flow(const struct udp_flow *a, const struct udp_flow *b)
{
	for (__u32 at = UDP_FLOW_COMPARED_FROM; at < UDP_FLOW_COMPARED_TO; at += 4)
		if (*(__u32 *)((char *)a + at) != *(__u32 *)((char *)b + at))
			return 0;
	return a->edition == b->edition && a->group == b->group;
}

/* Whether the stored flow equals `now`. Then only the time is updated. */
static __always_inline int is_noted(const struct known *known, const struct udp_flow *now)
{
	struct udp_flow *flow = known->flow;

	if (!flow || !known->is_newest || !is_same_flow(flow, now))
		return 0;
	__u64 seen_ns = bpf_ktime_get_coarse_ns();
	if (flow->seen_ns != seen_ns) /* the processor of the answers reads it, too */
		flow->seen_ns = seen_ns;
	return 1;
}

static __always_inline __u64 next_version(void)
{
	__u32 which = VERSIONS;
	__u64 *versions = bpf_map_lookup_elem(&tp_udp_counts, &which);
	return versions ? __sync_fetch_and_add(versions, 1) + 1 : 0;
}

/* Stores the flow as its client's newest. A previous newest flow of the same client to another address of
 * this host moves to that address's own entry. Nonzero: it can't be written. */
static __noinline int remember(struct udp_key *key, struct udp_flow *now)
{
	struct address local = key->local;

	now->seen_ns = bpf_ktime_get_coarse_ns();
	now->version = next_version();
	key->local = (struct address){};
	struct udp_flow *last = bpf_map_lookup_elem(&tp_udp_flows, key);
	if (last && !is_same_address(&last->local, &local)) {
		key->local = last->local;
		bpf_map_update_elem(&tp_udp_flows, key, last, BPF_ANY);
		key->local = local;
		bpf_map_delete_elem(&tp_udp_flows, key); /* it becomes the newest */
		key->local = (struct address){};
	}
	int failed = !!bpf_map_update_elem(&tp_udp_flows, key, now, BPF_ANY);
	key->local = local;
	return failed;
}

/* Removes what a header once named for the sender's own address and port. */
static __always_inline void remove_udp_flow(struct udp_key *key)
{
	bpf_map_delete_elem(&tp_udp_flows, key);
	key->local = (struct address){};
	bpf_map_delete_elem(&tp_udp_flows, key);
}
