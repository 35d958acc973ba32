/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What our own sockets send to the peers of a session that is being spliced.
 *
 *   ARMED          the program learns what the peer was told, and our socket's clock. While held, a socket's
 * windows are cut to what the other peer takes, rounded up where rounding down would take back an offer TAIL,
 * SPLICED  while the socket is open, its segments get the newest acknowledgement and timestamp. It does not
 * know what was translated, and the peer would discard older ones (RFC 5961, PAWS) closed         the kernel
 * does not know the connection any more: its resets are dropped
 *
 * A reset of an open socket leaves in every stage, with the number that the peer expects.
 */
#include "offload/tail.h"

static __always_inline void learn_clock(struct face *face, struct face *other, struct options *options)
{
	struct timestamps timestamps;

	if (!face->has_timestamps || read_timestamps(options, &timestamps))
		return;
	if (!(face->known & CLOCK)) {
		face->tsval = timestamps.value;
		face->clock = timestamps.value - milliseconds();
		note(face, CLOCK);
		compare_clocks(other, face);
	}
	raise(&face->tsval, timestamps.value);
}

/* The window ends where the other peer's does, or where our socket's earlier offer did: a receiver never
 * takes back an offer (RFC 9293, 3.8.6). Nor does rounding to our scale, where the peer would notice. A peer
 * whose window ends before what it has sent numbers its ACKs by the window's end, unless that is less than a
 * step of its own scale away (tcp_acceptable_seq()): our socket would drop them as old. If the peer, too, has
 * taken back a window for want of memory, both drop whatever the other says, for ever. */
static __always_inline __u32 held_window(const struct face *face, const struct face *other, __u32 ack,
					 __u32 window)
{
	__u32 step = 1U << (face->own_scale & 15), noticed = 1U << (face->peer_scale & 15);
	__u32 edge = far_edge(face, other), told = face->known & TOLD ? face->edge : ack;

	edge = newest_of(edge, told);
	if (!is_before(edge, ack + window))
		return window;
	__u32 held = reach(ack, edge) & ~(step - 1);
	return is_before(ack + held + noticed - 1, told) ? held + step : held;
}

/* Acknowledgement, window and timestamp of a segment that leaves. */
static __always_inline int say(struct __sk_buff *skb, const struct segment *segment, const struct face *face,
			       __u32 ack, __u32 window)
{
	struct rewriting rewriting = {};
	struct timestamps timestamps;

	if (begin_rewriting(skb, segment, &rewriting))
		return -1;
	rewriting.is.ack_seq = bpf_htonl(ack);
	rewriting.is.window = scaled(window, face);
	if (rewriting.options && !read_timestamps(rewriting.options, &timestamps) &&
	    is_before(timestamps.value, face->tsval))
		set_option_word(rewriting.options, rewriting.options->timestamps + 2, face->tsval);
	return finish_rewriting(skb, segment, &rewriting);
}

/* The segment leaves with numbers that the peer was told already or that the other peer has said, and they
 * are noted. */
static __always_inline int tell(struct __sk_buff *skb, const struct segment *segment, struct face *face,
				const struct face *other, __u32 stage)
{
	__u32 window = (__u32)bpf_ntohs(segment->window) << (face->own_scale & 15);
	__u32 ack = segment->ack, end = end_of(segment);
	int is_raised = stage != SPLICE_ARMED && other->known & SAID;

	if (is_raised) {
		ack = newest_of(ack, face->ack);
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
		return drop(SPLICE_FAILED);
	count(is_raised ? OWN_RAISED : OWN_HELD);
told:
	if (face->known & TOLD)
		raise_limit(&face->own_nxt, end);
	else
		face->own_nxt = end;
	note_told(face, end, ack, ack + window);
	return PASS;
}

static __always_inline int is_key(const struct segment *segment, const struct flow_key *key)
{
	return segment->source_port == key->local_port && segment->destination_port == key->remote_port &&
	       segment->ip.destination.word[3] == key->remote.word[3] &&
	       segment->ip.source.word[3] == key->local.word[3];
}

/* The numbers of our socket are old for a peer that has got translated bytes: it would not believe the
 * reset. */
static __always_inline int on_own_reset(struct __sk_buff *skb, const struct segment *segment,
					struct spliced *flow, const struct face *face)
{
	if (!(face->known & CUT))
		return PASS;
	if (is_before(segment->seq, face->nxt))
		shift_seq(skb, segment, face->nxt - segment->seq);
	move_stage(flow, SPLICE_SPLICED, SPLICE_DEAD);
	count(OWN_RESETS);
	return PASS;
}

/* Below a device that stands on another one (macvlan, VLAN, a bridge that got a port after the start) a
 * segment passes this program once more. The device of the route is the one that it passes first: only by
 * that one does bpf_redirect_neigh() find the peer. TCP stamps each segment with the time of its sending;
 * bridges clear that. */
static __always_inline void learn_device(struct __sk_buff *skb, struct face *face)
{
	__u64 sent_ns = skb->tstamp;

	if (!sent_ns || sent_ns == face->sent_ns)
		return;
	face->sent_ns = sent_ns;
	face->device = skb->ifindex;
	note(face, WAY);
}

static __always_inline int on_own(struct __sk_buff *skb, const struct splice_place *place)
{
	struct segment segment = {};
	struct spliced *flow = flow_at(place);
	if (!flow)
		return PASS;
	struct face *face = &flow->faces[place->bits & 1], *other = &flow->faces[!(place->bits & 1)];
	__u32 stage = flow->stage;
	if (stage != SPLICE_ARMED && !(face->known & CUT))
		return PASS;
	if (read_segment(skb, &segment) || !is_key(&segment, &face->key))
		return PASS;
	if (segment.flags & RST)
		return on_own_reset(skb, &segment, flow, face);
	if (stage == SPLICE_FREE || stage == SPLICE_GONE || segment.flags & SYN || !(segment.flags & ACK))
		return PASS;
	learn_device(skb, face);
	learn_clock(face, other, read_options(skb, &segment));
	return tell(skb, &segment, face, other, stage);
}

/* The flow whose peer this segment goes to. Nonzero: there is none. */
static __always_inline int find_place_towards(const struct segment *segment, struct splice_place *place)
{
	struct flow_key key = key_out(segment);
	return find_place(&key, place);
}

/* A reset that belongs to no socket: the kernel's answer to a segment of an unknown connection, such as a
 * fragment. */
static __always_inline int on_reset_of_nobody(struct __sk_buff *skb)
{
	struct segment segment = {};

	if (read_segment(skb, &segment) || !(segment.flags & RST))
		return PASS;
	struct splice_place place;
	if (find_place_towards(&segment, &place))
		return PASS;
	struct spliced *flow = flow_at(&place);
	if (!flow)
		return PASS;
	const struct face *face = &flow->faces[place.bits & 1];
	__u32 stage = flow->stage;
	/* truepeer was killed, and the peer goes on: the kernel answers the copy, whose acknowledgement may
	 * be older (on_copy()). */
	if (stage == SPLICE_TAIL && face->known & SAID && is_before(segment.seq, face->una))
		shift_seq(skb, &segment, face->una - segment.seq);
	if (stage < SPLICE_SPLICED || stage == SPLICE_GONE)
		return PASS;
	return drop(OWN_RESETS_DROPPED);
}

/* A socket of this host begins a connection with the addresses of an ended flow. Remove the flow, or it would
 * translate the SYN-ACK. */
static __noinline int on_own_syn(struct __sk_buff *skb)
{
	struct segment segment = {};

	if (read_segment(skb, &segment))
		return PASS;
	struct splice_place place;
	struct spliced *flow = find_place_towards(&segment, &place) ? 0 : flow_at(&place);
	__u32 stage = flow ? flow->stage : SPLICE_FREE;
	if (flow && (stage == SPLICE_CLOSING || stage == SPLICE_DEAD))
		make_room(flow, stage, &place);
	return PASS;
}

SEC("classifier")
int splice_out(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk && sk->type == SOCK_STREAM) {
		if (sk->state == BPF_TCP_SYN_SENT)
			return on_own_syn(skb);
		struct splice_place *place = bpf_sk_storage_get(&ts_sockets, sk, 0, 0);
		return place ? on_own(skb, place) : PASS;
	}
	/* Forwarded packets, translated segments among them, are not the kernel's own. */
	return skb->ingress_ifindex ? PASS : on_reset_of_nobody(skb);
}

char _license[] SEC("license") = "Dual MIT/GPL";
