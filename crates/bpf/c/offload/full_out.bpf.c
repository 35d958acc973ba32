/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Learns from the kernel's own handshakes: the device by which it answers a sender or reaches a backend, and
 * the longest segment there. */
#include "offload/full_maps.h"
#include "lib/tcp_opts.h"

static __always_inline __u16 mss_in(struct __sk_buff *skb, const struct segment *segment)
{
	struct options *options = read_options(skb, segment);

	return options ? maximum_segment_size(options) : DEFAULT_MSS;
}

static __always_inline void learn_sender(struct __sk_buff *skb, const struct segment *segment)
{
	struct full_listener *listener = listener_at(&segment->ip.source, segment->source_port, segment->ip.version);

	/* Strangers whom the port answers must not fill the table: only listed senders are noted. */
	if (!listener || !sender_rule(&segment->ip.destination, listener->group))
		return;
	struct full_sender sender = { .device = skb->ifindex, .own_mss = mss_in(skb, segment) };
	bpf_map_update_elem(&tf_senders, &segment->ip.destination, &sender, BPF_ANY);
}

/* Notes a SYN of truepeer's own connections to a backend. They are told by their source, an address that is
 * not this host's: that takes a capability. Other programs may reach the same backend by another device. */
static __always_inline void note_question(struct __sk_buff *skb, const struct segment *segment)
{
	struct full_backend *backend = backend_at(&segment->ip.destination, segment->destination_port);

	struct prefix source = host(&segment->ip.source);

	if (!backend || is_denied(&source, OWN_ADDRESSES))
		return;
	backend->asked_isn = segment->seq;
	backend->asked_as = segment->ip.source;
	backend->asked_port = segment->source_port;
	backend->asked_by = skb->ifindex;
	backend->asked_mark = skb->mark;
	backend->asked_mss = mss_in(skb, segment);
}

/* Most segments belong to established sockets: full_out returns before it reads the packet. skb->sk of a
 * SYN-ACK is its listener, or NULL for a SYN cookie. */
static __always_inline int is_past_handshake(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	return sk && sk->type == SOCK_STREAM && sk->state != BPF_TCP_LISTEN && sk->state != BPF_TCP_SYN_SENT &&
	       sk->state != BPF_TCP_SYN_RECV && sk->state != BPF_TCP_CLOSE;
}

SEC("classifier")
int full_out(struct __sk_buff *skb)
{
	struct segment segment = {};

	/* Forwarded packets are not of the kernel's own handshakes. */
	if (skb->ingress_ifindex || is_past_handshake(skb) || read_segment(skb, &segment))
		return PASS;
	if ((segment.flags & (SYN | ACK | RST)) == (SYN | ACK))
		learn_sender(skb, &segment);
	else if ((segment.flags & (SYN | ACK | RST)) == SYN)
		note_question(skb, &segment);
	return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
