/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Incoming UDP: from a sender to a backend on this host. The header is removed, the client becomes the
 * source, and the flow is stored for the answers. docs/internals/attach-udp.md has a drawing. */
#include "attach/udp_named.h"
#include "attach/udp_backend.h"
#include "lib/ipv6_exthdr.h"
#include "attach/gro_split.h"
#include "attach/refusals.h"

/* Too large for the stack. */
struct udp_scratch {
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

SCRATCH(udp_scratches, struct udp_scratch);

/* `opened` is of this datagram only where its header was validated. */
static __noinline int tell_datagram(struct udp_scratch *scratch, enum counter reason)
{
	const struct datagram *datagram = &scratch->datagram;
	struct flow_key key = {
		.remote = datagram->ip.source,
		.remote_port = datagram->source_port,
		.local_port = datagram->destination_port,
	};
	struct flow claimed = { .client = scratch->opened.client, .client_port = scratch->opened.client_port };

	if ((reason == REFUSED_CLAIM || reason == REFUSED_DENIED || reason == REFUSED_BANNED ||
	     reason == REFUSED_FAMILY) && scratch->opened.is_named)
		claimed.client_version = is_ipv4(&claimed.client) ? 4 : 6;
	return tell(&key, IPPROTO_UDP, reason, &claimed);
}

static __always_inline int refuse(struct udp_scratch *scratch, const struct udp_port *udp_port,
				  enum counter reason)
{
	count(&udp_port->port, reason);
	tell_datagram(scratch, reason);
	return DROP;
}

/* A datagram that is only forwarded must not be refused. */
static __always_inline int refuse_if_here(struct __sk_buff *skb, struct udp_scratch *scratch,
					  const struct ip *ip, const struct udp_port *udp_port,
					  enum counter reason)
{
	if (is_for_many(ip) || is_for_this_host(skb, ip, IPPROTO_UDP))
		return refuse(scratch, udp_port, reason);
	return pass(&udp_port->port, PASSED_NO_LISTENER);
}

/* Its answers must be changed. */
static __always_inline int needs_slot(const struct udp_port *udp_port, const struct datagram *datagram)
{
	return udp_port->dialect == DIALECT_SPP || datagram->destination_port != udp_port->backend_port;
}

/* Whether the kernel will accept it. Nothing must be learnt from a datagram that the kernel would drop. */
static __noinline int is_datagram_intact(struct __sk_buff *skb, const struct datagram *datagram)
{
	__u32 check_at = datagram->ip.payload_at + offsetof(struct udphdr, check);
	__be16 check;

	if (bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		return 0;
	if (check == 0) /* none: IPv6 demands one (RFC 8200, 8.1) */
		return datagram->ip.version == 4 && is_ip_intact(skb, &datagram->ip);
	return is_payload_intact(skb, &datagram->ip, sizeof(struct udphdr) + datagram->payload_len, check_at,
				 IPPROTO_UDP);
}

/* Stores the flow for its answers. Returns the reason to refuse the datagram, or 0. */
static __always_inline int note_flow(struct __sk_buff *skb, struct udp_scratch *scratch,
				     const struct udp_port *udp_port, enum where where,
				     const struct known *known)
{
	const struct datagram *datagram = &scratch->datagram;
	const struct opened *opened = &scratch->opened;

	if (!opened->is_named && !needs_slot(udp_port, datagram) && where == IS_BOUND) {
		/* Answers reach the sender without help. */
		if (!known->flow)
			return 0;
		if (!is_datagram_intact(skb, datagram))
			return REFUSED_DAMAGED;
		remove_udp_flow(&scratch->key);
		return 0;
	}
	struct udp_flow *flow = &scratch->flow;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->sender = datagram->ip.source;
	flow->local = datagram->ip.destination;
	flow->proxy = opened->proxy;
	flow->device = skb->ifindex;
	flow->sender_port = datagram->source_port;
	flow->port = datagram->destination_port;
	flow->proxy_port = opened->proxy_port;
	flow->said_client_port = opened->said_client_port;
	flow->counters = udp_port->port.counters;
	flow->group = udp_port->port.group;
	flow->is_spp = opened->is_spp;
	flow->needs_slot = needs_slot(udp_port, datagram);
	/* Whether an address may be claimed is independent of whether it may send. */
	flow->edition = opened->is_named ? scratch->edition : 0;
	if (is_noted(known, flow))
		return 0;
	if (!is_datagram_intact(skb, datagram))
		return REFUSED_DAMAGED;
	return remember(&scratch->key, flow) ? REFUSED_FULL : 0;
}

/* Stores the client for the sender's next datagrams. Returns the reason to refuse the datagram, or 0. */
static __always_inline int begin_flow(struct __sk_buff *skb, struct udp_scratch *scratch,
				      const struct known *known)
{
	if (!is_datagram_intact(skb, &scratch->datagram))
		return REFUSED_DAMAGED;
	if (known->flow)
		forget_earlier_sender(known->flow, &scratch->opened);
	return name_client(&scratch->datagram, &scratch->opened) ? REFUSED_FULL : 0;
}

/* Nonzero: it failed. */
static __always_inline int deliver(struct __sk_buff *skb, struct udp_scratch *scratch, __be16 backend_port)
{
	const struct opened *opened = &scratch->opened;
	struct datagram *to = &scratch->delivered;
	__u32 change = 0;

	*to = scratch->datagram;
	to->ip.source = opened->client;
	to->source_port = opened->client_port;
	to->destination_port = backend_port;
	if (opened->header_len) {
		to->payload_len -= opened->header_len;
		to->ip.len = ip_len_of(to);
		if (take_out(skb, &scratch->datagram, opened->header_len, &change))
			return -1;
	}
	return write_datagram(skb, &scratch->datagram, to, change);
}

/* The stored flow of this client at this address. If there is one, the address is this host's, and no route
 * need be looked up. */
static __always_inline void find_client(struct udp_scratch *scratch, const struct udp_port *udp_port,
					struct known *known)
{
	scratch->key.client = scratch->opened.client;
	scratch->key.local = scratch->datagram.ip.destination;
	scratch->key.client_port = scratch->opened.client_port;
	scratch->key.backend_port = udp_port->backend_port;
	find_known(&scratch->key, known);
}

static __always_inline int on_datagram(struct __sk_buff *skb, struct udp_scratch *scratch,
				       const struct udp_port *udp_port, __u32 rule, __u32 validated)
{
	struct opened *opened = &scratch->opened;
	const struct ip *ip = &scratch->datagram.ip;
	struct known known = {};
	int refusal = 0;

	if (!has_bare_datagrams(udp_port) || !open_datagram_of_flow(&scratch->datagram, udp_port, opened))
		refusal = open_datagram(skb, &scratch->datagram, udp_port, rule, opened);
	if (refusal)
		return refuse_if_here(skb, scratch, ip, udp_port, refusal);
	find_client(scratch, udp_port, &known);
	/* A claim that was validated by the same rules need not be validated again. */
	if (!known.flow || !opened->is_named || known.flow->edition != scratch->edition) {
		refusal = validate_named_client(&scratch->datagram, udp_port, opened, rule);
		if (refusal) {
			/* The rest of the flow is refused, too: its client could write the next header. */
			if (has_bare_datagrams(udp_port) && opened->is_named && !opened->is_of_flow)
				begin_flow(skb, scratch, &(struct known){});
			return refuse_if_here(skb, scratch, ip, udp_port, refusal);
		}
		find_client(scratch, udp_port, &known);
	}
	int is_here = known.flow || opened->is_of_flow;
	enum where where = find_where(skb, ip, &scratch->key, is_here, &scratch->on_loopback);
	is_here = is_here || is_for_this_host(skb, ip, IPPROTO_UDP);
	/* Also while the backend restarts: the flow's header comes once. */
	if (is_here && has_bare_datagrams(udp_port) && !opened->is_of_flow)
		refusal = begin_flow(skb, scratch, &known);
	if (!refusal && (where == NO_BACKEND || !is_here))
		return pass(&udp_port->port, PASSED_NO_LISTENER);
	refusal = refusal ? refusal : note_flow(skb, scratch, udp_port, where, &known);
	if (refusal)
		return refuse(scratch, udp_port, refusal);
	if (opened->header_len)
		count(&udp_port->port, udp_port->dialect == DIALECT_SPP ? HEADER_SPP : HEADER_V2);
	if (udp_port->dialect == DIALECT_STANDALONE && opened->header_len &&
	    opened->header_len == scratch->datagram.payload_len)
		return DROP; /* it has begun the flow of the datagrams after it */
	if (deliver(skb, scratch, udp_port->backend_port))
		return refuse(scratch, udp_port, FAILED);
	if (where == IS_ON_LOOPBACK &&
	    !find_backend(skb, &scratch->on_loopback, opened->client_port, udp_port->backend_port, GIVE))
		return refuse(scratch, udp_port, FAILED);
	count(&udp_port->port, DATAGRAM);
	skb->priority = validated; /* udp_backstop.h */
	return PASS;
}

static __always_inline int on_aggregate(struct __sk_buff *skb, struct udp_scratch *scratch,
					const struct datagram *all, const struct udp_port *udp_port)
{
	if (!is_for_this_host(skb, &all->ip, IPPROTO_UDP))
		return pass(&udp_port->port, PASSED_NO_LISTENER);
	if (take_apart(skb, all, BPF_F_INGRESS))
		return refuse(scratch, udp_port, REFUSED_AGGREGATED);
	count(&udp_port->port, SPLIT_UP);
	return DROP; /* its parts come instead */
}

static __always_inline __u32 rule_of(struct udp_scratch *scratch, const struct udp_port *udp_port,
				     __u32 edition)
{
	const struct address *sender = &scratch->datagram.ip.source;

	if (scratch->edition != edition || !is_same_address(&scratch->sender, sender)) {
		scratch->edition = edition;
		scratch->sender = *sender;
		scratch->rules = sender_rules(sender);
	}
	return of_group(scratch->rules, udp_port->port.group);
}

static __always_inline int on_unreadable(struct __sk_buff *skb, struct udp_scratch *scratch)
{
	struct hidden *hidden = &scratch->hidden;

	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return PASS; /* IPv4's fragments are read as such */
	enum finding found = find_hidden(skb, IPPROTO_UDP, hidden);
	if (found == NOTHING_HIDDEN || !sender_rules(&hidden->ip.source))
		return PASS;
	if (found == TOO_LONG_TO_SAY)
		return is_for_this_host(skb, &hidden->ip, IPPROTO_UDP) ? refuse_too_long() : PASS;
	struct udp_port *udp_port = bpf_map_lookup_elem(&tp_udp_ports, &hidden->destination_port);
	if (!udp_port || !sender_rule(&hidden->ip.source, udp_port->port.group))
		return PASS;
	scratch->datagram.ip.source = hidden->ip.source;
	scratch->datagram.source_port = hidden->source_port;
	scratch->datagram.destination_port = hidden->destination_port;
	return refuse_if_here(skb, scratch, &hidden->ip, udp_port, REFUSED_FRAGMENT);
}

/* Passed as if nothing were attached. A header shows that a sender's address has changed on its way, as by a
 * stale conntrack entry. */
static __always_inline int on_unlisted(struct __sk_buff *skb, struct udp_scratch *scratch,
				       const struct udp_port *udp_port)
{
	const struct datagram *datagram = &scratch->datagram;

	if (!begins_with_header(skb, datagram, udp_port) ||
	    !(is_for_many(&datagram->ip) || is_for_this_host(skb, &datagram->ip, IPPROTO_UDP)))
		return pass(&udp_port->port, PASSED_NOT_A_SENDER);
	count(&udp_port->port, HEADER_UNLISTED);
	tell_datagram(scratch, HEADER_UNLISTED);
	return PASS;
}

SEC("classifier")
int udp_ingress(struct __sk_buff *skb)
{
	struct udp_scratch *scratch = ONLY_ENTRY(udp_scratches);
	if (!scratch || skb->pkt_type == 3 /* PACKET_OTHERHOST */)
		return PASS;
	if (read_datagram(skb, &scratch->datagram))
		return on_unreadable(skb, scratch);
	struct udp_port *udp_port = bpf_map_lookup_elem(&tp_udp_ports, &scratch->datagram.destination_port);
	if (!udp_port)
		return PASS;
	struct settings *settings = ONLY_ENTRY(tp_settings);
	/* A bridge's port and the bridge, or a bond's port and the bond, may both be attached: the second has
	 * nothing left to validate. */
	if (!settings || skb->priority == settings->validated)
		return PASS;
	__u32 rule = rule_of(scratch, udp_port, settings->edition);
	if (!rule)
		return on_unlisted(skb, scratch, udp_port);
	if (scratch->datagram.ip.is_fragment)
		return refuse_if_here(skb, scratch, &scratch->datagram.ip, udp_port, REFUSED_FRAGMENT);
	if (scratch->datagram.has_no_len)
		return refuse_if_here(skb, scratch, &scratch->datagram.ip, udp_port, REFUSED_DAMAGED);
	if (skb->gso_size)
		return on_aggregate(skb, scratch, &scratch->datagram, udp_port);
	return on_datagram(skb, scratch, udp_port, rule, settings->validated);
}

char _license[] SEC("license") = "Dual MIT/GPL";
