/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Outgoing answers that udp_send could not finish: ports to map back, SPP headers to put back, and the
 * answers of connected sockets, which the kernel sends without calling udp_send. */
#include "proxy_header/header.h"
#include "attach/udp_slots.h"
#include "lib/udp.h"
#include "attach/gro_split.h"

/* Its sender. */
enum origin {
	BY_SENDMSG,    /* a socket that names whom it sends to each time: udp_send was asked */
	BY_CONNECTION, /* a socket that is connected to whom it sends to: udp_send was not asked, so it
			* goes to the client still */
	BY_KERNEL,     /* one of the kernel's own sockets (WireGuard's): udp_send was not asked. Its
			* packets name no socket, or another one */
};

/* Too large for the stack. A split answer no longer needs this when its parts arrive, except the last two
 * fields. */
struct udp_scratch {
	struct datagram datagram;
	struct datagram to;
	struct udp_flow flow;
	struct udp_slot slot;
	enum origin origin;
	__u32 is_apart; /* what comes now are parts of one packet: copies, which name no socket. It keeps
			 * its slot until all of them have gone */
};

SCRATCH(udp_scratches, struct udp_scratch);

/* Makes room behind the UDP header and writes the flow's header there. `change` becomes the difference in the
 * payload's sum. Nonzero: there is no room. */
GLOBAL int put_spp_back(struct __sk_buff *skb, const struct datagram *datagram, const struct udp_slot *slot,
			__u32 *change)
{
	if (!datagram || !slot || !change)
		return -1;
	struct {
		struct spp spp;
		__u8 pad[2];
	} header = { .spp.magic = { 0x56, 0xec } };

	__builtin_memcpy(header.spp.client, &slot->client, sizeof(header.spp.client));
	__builtin_memcpy(header.spp.proxy, &slot->proxy, sizeof(header.spp.proxy));
	__builtin_memcpy(header.spp.client_port, &slot->said_client_port, sizeof(header.spp.client_port));
	__builtin_memcpy(header.spp.proxy_port, &slot->proxy_port, sizeof(header.spp.proxy_port));
	__u32 mtu = 0; /* of the device */
	if (bpf_check_mtu(skb, 0, &mtu, SPP_LEN, 0))
		return -1;
	if (bpf_skb_change_tail(skb, datagram->payload_at + datagram->payload_len + SPP_LEN, 0))
		return -1;
	if (move_up(skb, datagram->payload_at, datagram->payload_at + SPP_LEN, datagram->payload_len))
		return -1;
	*change = bpf_csum_diff(0, 0, (__be32 *)&header, sizeof(header), 0);
	return bpf_skb_store_bytes(skb, datagram->payload_at, &header.spp, SPP_LEN, BPF_F_RECOMPUTE_CSUM);
}

/* Rewrites the ports, and adds the header, for the answer's sender. Nonzero: drop it. */
static __noinline int translate(struct __sk_buff *skb, const struct datagram *datagram,
				const struct udp_slot *slot, struct datagram *to)
{
	__u32 change = 0;

	to->source_port = slot->port;
	to->destination_port = slot->sender_port;
	if (slot->is_spp) {
		if (datagram->ip.is_fragment || put_spp_back(skb, datagram, slot, &change)) {
			count_at(slot->counters, ANSWER_TOO_LONG);
			return -1;
		}
		to->payload_len += SPP_LEN;
		to->ip.len += SPP_LEN;
	}
	if (write_datagram(skb, datagram, to, change)) {
		count_at(slot->counters, FAILED);
		return -1;
	}
	return 0;
}

static __always_inline int is_connected_to(const struct bpf_sock *sk, const struct datagram *datagram)
{
	if (sk->dst_port != datagram->destination_port)
		return 0;
	struct address peer = { .word = { 0, 0, MAPPED, sk->dst_ip4 } };
	asm volatile("" : : "r"(&peer) : "memory"); /* the verifier wants each field read at its own place */
	if (datagram->ip.version == 6) {
		COPY_IPV6(peer.word, sk->dst_ip6);
	}
	return is_same_address(&peer, &datagram->ip.destination);
}

static __always_inline enum origin origin_of(struct __sk_buff *skb, const struct datagram *datagram)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (!sk || sk->protocol != IPPROTO_UDP || sk->src_port != bpf_ntohs(datagram->source_port))
		return BY_KERNEL;
	return is_connected_to(sk, datagram) ? BY_CONNECTION : BY_SENDMSG;
}

/* Answers sent in one call (UDP_SEGMENT): each part needs its SPP header, and arrives here again to get
 * it. */
static __always_inline int on_aggregate(struct __sk_buff *skb, struct udp_scratch *scratch, __u16 counters)
{
	scratch->is_apart = 1;
	count_at(counters, take_apart(skb, &scratch->datagram, 0) ? ANSWER_AGGREGATED : SPLIT_UP);
	scratch->is_apart = 0;
	return DROP; /* its parts go instead */
}

/* The sender is on this host. The answer is not sent but received, with zero addresses as on the loopback;
 * otherwise it would be meant for another host. */
static __always_inline int hand_over_here(struct __sk_buff *skb)
{
	struct ethhdr link = { .h_proto = skb->protocol };

	if (bpf_skb_store_bytes(skb, 0, &link, sizeof(link), 0))
		return DROP;
	return bpf_redirect(LOOPBACK, BPF_F_INGRESS);
}

/* To the client itself: by another path than to the sender, perhaps over another device. */
static __always_inline int on_answer_to_client(struct __sk_buff *skb, struct udp_scratch *scratch)
{
	const struct datagram *datagram = &scratch->datagram;
	struct udp_flow *flow = &scratch->flow;
	struct datagram *to = &scratch->to;
	struct udp_key key = {
		.client = datagram->ip.destination,
		.client_port = datagram->destination_port,
		.backend_port = datagram->source_port,
	};
	if (!copy_udp_flow(&key, &datagram->ip.source, flow))
		return PASS;
	describe(&scratch->slot, &key, flow);
	if (flow->is_spp && skb->gso_size)
		return on_aggregate(skb, scratch, flow->counters);
	*to = *datagram;
	to->ip.source = flow->local;
	to->ip.destination = flow->sender;
	count_at(flow->counters, ANSWER);
	if (datagram->ip.is_fragment) {
		count_at(flow->counters, ANSWER_TOO_LONG); /* the others have no ports, and would go to the client */
		return DROP;
	}
	if (translate(skb, datagram, &scratch->slot, to))
		return DROP;
	/* The sender stands for itself: the kernel has routed it. Redirected, it would come here again as the
	 * same answer, and again. */
	if (is_same_address(&flow->sender, &datagram->ip.destination))
		return PASS;
	__u32 device = flow->device;
	if (link_header_len == 0)
		return device == skb->ifindex ? PASS : bpf_redirect(device, 0);
	if (device == LOOPBACK)
		return hand_over_here(skb);
	return bpf_redirect_neigh(device, 0, 0, 0);
}

/* An answer to which udp_send has given a slot. */
static __always_inline int on_answer_with_slot(struct __sk_buff *skb, struct udp_scratch *scratch,
					       struct udp_slot *slot)
{
	int verdict;

	if (slot->is_spp && skb->gso_size) {
		verdict = on_aggregate(skb, scratch, slot->counters);
	} else {
		scratch->slot = *slot;
		scratch->to = scratch->datagram;
		verdict = translate(skb, &scratch->datagram, &scratch->slot, &scratch->to) ? DROP : PASS;
	}
	if (!scratch->is_apart)
		release_slot(slot);
	return verdict;
}

SEC("classifier")
int udp_egress(struct __sk_buff *skb)
{
	struct udp_scratch *scratch = ONLY_ENTRY(udp_scratches);
	if (!scratch || read_datagram(skb, &scratch->datagram))
		return PASS;
	const struct datagram *datagram = &scratch->datagram;
	struct backend *backend = bpf_map_lookup_elem(&tp_backends, &datagram->source_port);
	if (!backend)
		return PASS;
	if (!scratch->is_apart)
		scratch->origin = origin_of(skb, datagram);
	switch (scratch->origin) {
	case BY_CONNECTION: return on_answer_to_client(skb, scratch);
	case BY_KERNEL:
		return sender_rule(&datagram->ip.destination, backend->group) ? PASS : on_answer_to_client(skb, scratch);
	case BY_SENDMSG: break;
	}
	if (backend->kind != ANSWERS_BY_SLOT)
		return PASS;
	struct udp_slot *slot =
		find_slot(&datagram->ip.destination, datagram->destination_port, datagram->source_port);
	return slot ? on_answer_with_slot(skb, scratch, slot) : PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
