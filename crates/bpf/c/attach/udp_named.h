/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Dialects with a header in a flow's first datagram only. The later datagrams of its sender's address and
 * port belong to the client that the header named, whatever they begin with: if a later header were obeyed,
 * each client could choose its name. A sender that is silent for udp_silence_s is forgotten before it gives
 * its port to another client. A datagram without a flow is dropped. */
#pragma once
#include "attach/udp_opened.h"
#include "attach/udp_flows.h"

static __always_inline struct flow_key sender_key(const struct datagram *datagram)
{
	return (struct flow_key){
		.remote = datagram->ip.source,
		.local = datagram->ip.destination,
		.remote_port = datagram->source_port,
		.local_port = datagram->destination_port,
	};
}

/* Opens a datagram of a flow. 0: its sender has no flow. As in copy_udp_flow(), the entry may be reused for
 * another sender while it is read. */
GLOBAL int open_datagram_of_flow(const struct datagram *datagram, const struct udp_port *udp_port,
				 struct opened *opened)
{
	if (!datagram || !udp_port || !opened)
		return 0;
	struct flow_key key = sender_key(datagram);
	struct udp_named *named = bpf_map_lookup_elem(&tp_udp_named, &key);

	if (!named || is_long_ago(named->seen_ns, udp_port->port.group))
		return 0;
	__u64 version = *(volatile __u64 *)&named->version;
	asm volatile("" : : : "memory");
	*opened = (struct opened){
		.client = named->client,
		.client_port = named->client_port,
		.is_named = named->is_named,
		.is_of_flow = 1,
	};
	asm volatile("" : : : "memory");
	named = bpf_map_lookup_elem(&tp_udp_named, &key);
	if (!named || named->version != version)
		return 0;
	named->seen_ns = bpf_ktime_get_coarse_ns();
	return 1;
}

/* The client comes by another address or port of its sender now. The earlier one may soon be another
 * client's. `flow` is the client's stored flow. */
static __noinline void forget_earlier_sender(const struct udp_flow *flow, const struct opened *opened)
{
	struct flow_key key = {
		.remote = flow->sender,
		.local = flow->local,
		.remote_port = flow->sender_port,
		.local_port = flow->port,
	};
	struct udp_named *named = bpf_map_lookup_elem(&tp_udp_named, &key);

	if (named && named->client_port == opened->client_port && is_same_address(&named->client, &opened->client))
		bpf_map_delete_elem(&tp_udp_named, &key);
}

/* Stores the client of the sender's next datagrams. Nonzero: it can't be written. */
static __noinline int name_client(const struct datagram *datagram, const struct opened *opened)
{
	struct flow_key key = sender_key(datagram);
	struct udp_named named = {
		.seen_ns = bpf_ktime_get_coarse_ns(),
		.version = next_version(),
		.client = opened->client,
		.client_port = opened->client_port,
		.is_named = opened->is_named,
	};
	return !!bpf_map_update_elem(&tp_udp_named, &key, &named, BPF_ANY);
}
