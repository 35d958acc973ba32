/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Incoming UDP: from a sender to a backend on this host. The header is removed, the client becomes the source,
 * and the flow is stored for the answers. docs/internals/attach-udp.md has a drawing. */
#include "udp_opened.h"
#include "udp_backend.h"
#include "udp_flows.h"
#include "udp_sound.h"
#include "hidden.h"
#include "parcel.h"
#include "refusals.h"

/* Too large for the stack. */
struct desk {
	struct datagram datagram;
	struct datagram delivered;
	struct opened opened;
	struct ip on_loopback;
	struct udp_key key;
	struct udp_flow flow;
	struct hidden hidden;
	/* The last sender's rules: there are few senders. */
	struct address sender;
	__u32 rules;
	__u32 edition;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct desk);
} desks SEC(".maps");

/* `opened` is of this datagram only where its header was judged. */
static __noinline int tell_datagram(struct desk *desk, enum counter reason)
{
	const struct datagram *datagram = &desk->datagram;
	struct flow_key key = {
		.sender = datagram->ip.source,
		.sender_port = datagram->source_port,
		.local_port = datagram->destination_port,
	};
	struct flow claimed = { .client = desk->opened.client, .client_port = desk->opened.client_port };

	if ((reason == REFUSED_CLAIM || reason == REFUSED_DENIED || reason == REFUSED_FAMILY) && desk->opened.is_named)
		claimed.client_version = is_ipv4(&claimed.client) ? 4 : 6;
	return tell(&key, IPPROTO_UDP, reason, &claimed);
}

static __always_inline int refuse(struct desk *desk, const struct gate *gate, enum counter reason)
{
	count(&gate->port, reason);
	tell_datagram(desk, reason);
	return DROP;
}

/* A datagram that is only forwarded must not be refused. */
static __always_inline int refuse_if_here(struct __sk_buff *skb, struct desk *desk, const struct ip *ip, const struct gate *gate,
					  enum counter reason)
{
	if (is_for_many(ip) || is_for_this_host(skb, ip, IPPROTO_UDP))
		return refuse(desk, gate, reason);
	count(&gate->port, PASSED_NO_LISTENER);
	return PASS;
}

/* Its answers must be changed. */
static __always_inline int needs_seat(const struct gate *gate, const struct datagram *datagram)
{
	return gate->dialect == DIALECT_SPP || datagram->destination_port != gate->backend_port;
}

/* Stores the flow for its answers. Returns the reason to refuse the datagram, or 0. */
static __always_inline int note_flow(struct __sk_buff *skb, struct desk *desk, const struct gate *gate, enum where where,
				     const struct known *known)
{
	const struct datagram *datagram = &desk->datagram;
	const struct opened *opened = &desk->opened;

	if (!opened->is_named && !needs_seat(gate, datagram) && where == IS_BOUND) {
		/* Answers reach the sender without help. */
		if (!known->flow)
			return 0;
		if (!is_sound(skb, datagram))
			return REFUSED_DAMAGED;
		forget(&desk->key);
		return 0;
	}
	struct udp_flow *flow = &desk->flow;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->sender = datagram->ip.source;
	flow->local = datagram->ip.destination;
	flow->proxy = opened->proxy;
	flow->device = skb->ifindex;
	flow->sender_port = datagram->source_port;
	flow->port = datagram->destination_port;
	flow->proxy_port = opened->proxy_port;
	flow->said_client_port = opened->said_client_port;
	flow->slot = gate->port.slot;
	flow->group = gate->port.group;
	flow->is_spp = opened->is_spp;
	flow->needs_seat = needs_seat(gate, datagram);
	/* Whether an address may be claimed is independent of whether it may send. */
	flow->edition = opened->is_named ? desk->edition : 0;
	if (is_noted(known, flow))
		return 0;
	if (!is_sound(skb, datagram))
		return REFUSED_DAMAGED;
	return remember(&desk->key, flow) ? REFUSED_FULL : 0;
}

/* Nonzero: it failed. */
static __always_inline int deliver(struct __sk_buff *skb, struct desk *desk, __be16 backend_port)
{
	const struct opened *opened = &desk->opened;
	struct datagram *to = &desk->delivered;
	__u32 change = 0;

	*to = desk->datagram;
	to->ip.source = opened->client;
	to->source_port = opened->client_port;
	to->destination_port = backend_port;
	if (opened->header_len) {
		to->payload_len -= opened->header_len;
		to->ip.len = ip_len_of(to);
		if (take_out(skb, &desk->datagram, opened->header_len, &change))
			return -1;
	}
	return write_datagram(skb, &desk->datagram, to, change);
}

/* The stored flow of this client at this address. If there is one, the address is this host's, and no route
 * need be looked up. */
static __always_inline void find_client(struct desk *desk, const struct gate *gate, struct known *known)
{
	desk->key.client = desk->opened.client;
	desk->key.local = desk->datagram.ip.destination;
	desk->key.client_port = desk->opened.client_port;
	desk->key.backend_port = gate->backend_port;
	find_known(&desk->key, known);
}

static __always_inline int on_datagram(struct __sk_buff *skb, struct desk *desk, const struct gate *gate, __u32 rule, __u32 judged)
{
	struct opened *opened = &desk->opened;
	const struct ip *ip = &desk->datagram.ip;
	struct known known = {};
	int refusal = open_datagram(skb, &desk->datagram, gate, rule, opened);
	if (refusal)
		return refuse_if_here(skb, desk, ip, gate, refusal);
	find_client(desk, gate, &known);
	/* A claim that was judged by the same rules need not be judged again. */
	if (!known.flow || !opened->is_named || known.flow->edition != desk->edition) {
		refusal = judge_client(&desk->datagram, gate, opened);
		if (refusal)
			return refuse_if_here(skb, desk, ip, gate, refusal);
		find_client(desk, gate, &known);
	}
	int is_here = !!known.flow;
	enum where where = find_where(skb, ip, &opened->client, opened->client_port, gate->backend_port, is_here, &desk->on_loopback);
	if (where == NO_BACKEND || !(is_here || is_for_this_host(skb, ip, IPPROTO_UDP))) {
		count(&gate->port, PASSED_NO_LISTENER);
		return PASS;
	}
	refusal = note_flow(skb, desk, gate, where, &known);
	if (refusal)
		return refuse(desk, gate, refusal);
	if (deliver(skb, desk, gate->backend_port))
		return refuse(desk, gate, FAILED);
	if (where == IS_ON_LOOPBACK && !find_backend(skb, &desk->on_loopback, opened->client_port, gate->backend_port, GIVE))
		return refuse(desk, gate, FAILED);
	if (opened->header_len)
		count(&gate->port, gate->dialect == DIALECT_SPP ? HEADER_SPP : HEADER_V2);
	count(&gate->port, DATAGRAM);
	skb->priority = judged; /* udp_backstop.h */
	return PASS;
}

static __always_inline int on_aggregate(struct __sk_buff *skb, struct desk *desk, const struct datagram *all, const struct gate *gate)
{
	if (!is_for_this_host(skb, &all->ip, IPPROTO_UDP)) {
		count(&gate->port, PASSED_NO_LISTENER);
		return PASS;
	}
	if (take_apart(skb, all, BPF_F_INGRESS))
		return refuse(desk, gate, REFUSED_AGGREGATED);
	count(&gate->port, SPLIT_UP);
	return DROP; /* its parts come instead */
}

static __always_inline __u32 rule_of(struct desk *desk, const struct gate *gate, __u32 edition)
{
	const struct address *sender = &desk->datagram.ip.source;

	if (desk->edition != edition || !is_same_address(&desk->sender, sender)) {
		desk->edition = edition;
		desk->sender = *sender;
		desk->rules = sender_rules(sender);
	}
	return of_group(desk->rules, gate->port.group);
}

static __always_inline int on_unreadable(struct __sk_buff *skb, struct desk *desk)
{
	struct hidden *hidden = &desk->hidden;

	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return PASS; /* IPv4's fragments are read as such */
	enum finding found = find_hidden(skb, IPPROTO_UDP, hidden);
	if (found == NOTHING_HIDDEN || !sender_rules(&hidden->ip.source))
		return PASS;
	if (found == TOO_LONG_TO_SAY)
		return is_for_this_host(skb, &hidden->ip, IPPROTO_UDP) ? refuse_too_long() : PASS;
	struct gate *gate = bpf_map_lookup_elem(&tp_gates, &hidden->destination_port);
	if (!gate || !sender_rule(&hidden->ip.source, gate->port.group))
		return PASS;
	desk->datagram.ip.source = hidden->ip.source;
	desk->datagram.source_port = hidden->source_port;
	desk->datagram.destination_port = hidden->destination_port;
	return refuse_if_here(skb, desk, &hidden->ip, gate, REFUSED_FRAGMENT);
}

/* Passed as if nothing were attached. A header shows that a sender's address has changed on its way, as by a
 * stale conntrack entry. */
static __always_inline int on_unlisted(struct __sk_buff *skb, struct desk *desk, const struct gate *gate)
{
	const struct datagram *datagram = &desk->datagram;

	if (!begins_with_header(skb, datagram, gate) ||
	    !(is_for_many(&datagram->ip) || is_for_this_host(skb, &datagram->ip, IPPROTO_UDP))) {
		count(&gate->port, PASSED_NOT_A_SENDER);
		return PASS;
	}
	count(&gate->port, HEADER_UNLISTED);
	tell_datagram(desk, HEADER_UNLISTED);
	return PASS;
}

SEC("classifier")
int udp_ingress(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct desk *desk = bpf_map_lookup_elem(&desks, &only);
	if (!desk || skb->pkt_type == 3 /* PACKET_OTHERHOST */)
		return PASS;
	if (read_datagram(skb, &desk->datagram))
		return on_unreadable(skb, desk);
	struct gate *gate = bpf_map_lookup_elem(&tp_gates, &desk->datagram.destination_port);
	if (!gate)
		return PASS;
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);
	/* A bridge's port and the bridge, or a bond's port and the bond, may both be attached: the second has nothing
	 * left to judge. */
	if (!settings || skb->priority == settings->judged)
		return PASS;
	__u32 rule = rule_of(desk, gate, settings->edition);
	if (!rule)
		return on_unlisted(skb, desk, gate);
	if (desk->datagram.ip.is_fragment)
		return refuse_if_here(skb, desk, &desk->datagram.ip, gate, REFUSED_FRAGMENT);
	if (desk->datagram.has_no_len)
		return refuse_if_here(skb, desk, &desk->datagram.ip, gate, REFUSED_DAMAGED);
	if (skb->gso_size)
		return on_aggregate(skb, desk, &desk->datagram, gate);
	return on_datagram(skb, desk, gate, rule, settings->judged);
}

char _license[] SEC("license") = "Dual MIT/GPL";
