/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What our own sockets send to the peers of a session that is being spliced.
 *
 *   ARMED   it is learnt from: what the peer was told, and our socket's clock. Held, it offers the peer no more than the other peer takes
 *   TAIL    it says the newest: our socket does not know what was translated, and the peer would discard what knows less (RFC 5961, PAWS)
 *   then    the kernel knows nothing of the connection, and what it would say of it is not said
 */
#include "splice_tail.h"

static __always_inline void learn_clock(struct face *face, struct options *options)
{
	struct timestamps timestamps;

	if (!face->has_timestamps || read_timestamps(options, &timestamps))
		return;
	if (!(face->known & CLOCK)) {
		face->tsval = timestamps.value;
		face->clock = timestamps.value - milliseconds();
		note(face, CLOCK);
	}
	raise(&face->tsval, timestamps.value);
}

static __always_inline __u32 reach(__u32 ack, __u32 edge)
{
	return is_before(ack, edge) ? edge - ack : 0;
}

/* A window that ends where the other peer's does, or where our socket's did before it was held: a receiver never takes back what it has
 * offered (RFC 9293, 3.8.6). */
static __always_inline __u32 held_window(const struct face *face, const struct face *other, __u32 ack, __u32 window)
{
	__u32 edge = far_edge(face, other);

	if (face->known & TOLD && is_before(edge, face->edge))
		edge = face->edge;
	return is_before(edge, ack + window) ? reach(ack, edge) : window;
}

/* Acknowledgement, window and timestamp of a segment that leaves. */
static __always_inline int say(struct __sk_buff *skb, const struct segment *segment, const struct face *face, __u32 ack, __u32 window)
{
	struct rewriting rewriting = {};
	struct timestamps timestamps;

	if (begin_rewriting(skb, segment, &rewriting))
		return -1;
	rewriting.is.ack_seq = bpf_htonl(ack);
	rewriting.is.window = scaled(window, face);
	if (rewriting.options && !read_timestamps(rewriting.options, &timestamps) && is_before(timestamps.value, face->tsval))
		set_option_word(rewriting.options, rewriting.options->timestamps + 2, face->tsval);
	return finish_rewriting(skb, segment, &rewriting);
}

/* Nothing but numbers that the peer was told already, or that the other peer has said. */
static __always_inline int tell(struct __sk_buff *skb, const struct segment *segment, struct face *face, const struct face *other,
				__u32 stage, __u32 window)
{
	__u32 ack = segment->ack, end = end_of(segment);
	int is_raised = stage == SPLICE_TAIL && other->known & SAID;

	if (is_raised) {
		raise(&ack, face->ack);
		window = reach(ack, far_edge(face, other));
	} else if (face->known & HELD && other->known & SAID) {
		__u32 held = held_window(face, other, ack, window);

		if (held == window)
			goto told;
		window = held;
	} else {
		goto told;
	}
	if (say(skb, segment, face, ack, window))
		return drop_for(SPLICE_FAILED);
	tally(is_raised ? OWN_RAISED : OWN_HELD);
told:
	if (face->known & TOLD)
		raise(&face->own_nxt, end);
	else
		face->own_nxt = end;
	note_told(face, end, ack, ack + window);
	return PASS;
}

static __always_inline int is_key(const struct segment *segment, const struct flow_key *key)
{
	return segment->source_port == key->local_port && segment->destination_port == key->sender_port &&
	       segment->ip.destination.word[3] == key->sender.word[3] && segment->ip.source.word[3] == key->local.word[3];
}

static __always_inline int on_own(struct __sk_buff *skb, const struct splice_place *place)
{
	struct segment segment = {};
	struct tcphdr tcp;

	struct spliced *flow = flow_at(place);
	if (!flow || (flow->stage != SPLICE_ARMED && flow->stage != SPLICE_TAIL))
		return PASS;
	struct face *face = &flow->faces[place->bits & 1], *other = &flow->faces[!(place->bits & 1)];
	__u32 stage = flow->stage;
	if (read_segment(skb, &segment) || !is_key(&segment, &face->key) || segment.flags & (SYN | RST) || !(segment.flags & ACK))
		return PASS;
	if (bpf_skb_load_bytes(skb, segment.ip.payload_at, &tcp, sizeof(tcp)))
		return PASS;
	face->device = skb->ifindex;
	learn_clock(face, read_options(skb, &segment));
	return tell(skb, &segment, face, other, stage, (__u32)bpf_ntohs(tcp.window) << (face->own_scale & 15));
}

/* Of no socket: the kernel's answer to a segment that it knows no connection for, such as a fragment. */
static __always_inline int on_reset_of_nobody(struct __sk_buff *skb)
{
	struct segment segment = {};

	if (read_segment(skb, &segment) || !(segment.flags & RST))
		return PASS;
	struct flow_key key = {
		.sender = segment.ip.destination,
		.local = segment.ip.source,
		.sender_port = segment.destination_port,
		.local_port = segment.source_port,
	};
	struct splice_place *place = bpf_map_lookup_elem(&ts_keys, &key);
	if (!place)
		return PASS;
	struct spliced *flow = flow_at(place);
	if (!flow || flow->stage < SPLICE_SPLICED || flow->stage == SPLICE_GONE)
		return PASS;
	return drop_for(OWN_RESETS_DROPPED);
}

SEC("classifier")
int splice_out(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk && sk->type == SOCK_STREAM) {
		struct splice_place *place = bpf_sk_storage_get(&ts_sockets, sk, 0, 0);
		return place ? on_own(skb, place) : PASS;
	}
	/* What came in from outside, translated segments among it, is not the kernel's own word. */
	return skb->ingress_ifindex ? PASS : on_reset_of_nobody(skb);
}

char _license[] SEC("license") = "Dual MIT/GPL";
