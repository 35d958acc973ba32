/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What the kernel's own handshakes tell: by which device it answers a sender and asks a backend, and how long segments may be there. */
#include "full_maps.h"
#include "options.h"

static __always_inline __u16 mss_in(struct __sk_buff *skb, const struct segment *segment)
{
	struct options *options = read_options(skb, segment);

	return options ? maximum_segment_size(options) : DEFAULT_MSS;
}

static __always_inline void learn_sender(struct __sk_buff *skb, const struct segment *segment)
{
	struct full_listener *listener = listener_at(&segment->ip.source, segment->source_port, segment->ip.version);

	/* Whom the port answers as well must not take the others' places. */
	if (!listener || !sender_rule(&segment->ip.destination, listener->group))
		return;
	struct full_sender sender = { .device = skb->ifindex, .own_mss = mss_in(skb, segment) };
	bpf_map_update_elem(&tf_senders, &segment->ip.destination, &sender, BPF_ANY);
}

/* Only truepeer asks with others' addresses: that takes a capability. What else connects to the backend, by whichever device, says nothing of
 * truepeer's connections. */
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

/* Most segments are of such sockets: return before the packet is read. skb->sk of a SYN-ACK is its listener, or NULL for a SYN cookie. */
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

	/* What came in from outside is not the kernel's own word. */
	if (skb->ingress_ifindex || is_past_handshake(skb) || read_segment(skb, &segment))
		return PASS;
	if ((segment.flags & (SYN | ACK | RST)) == (SYN | ACK))
		learn_sender(skb, &segment);
	else if ((segment.flags & (SYN | ACK | RST)) == SYN)
		note_question(skb, &segment);
	return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
