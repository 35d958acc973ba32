/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Segments of both peers of a spliced session, as they come in. From the cut on they are translated from one
 * connection to the other. The drawing is in docs/internals/splice.md. */
#include "offload/syn.h"
#include "offload/errors.h"
#include "offload/tail.h"

/* Whether the TCP sum of a segment in the middle of a connection is right. Each segment of a spliced session
 * pays for this, so the cheapest check comes first: a segment whose sum is still to come (CHECKSUM_PARTIAL)
 * has that of the pseudo header in the field. A damaged one that has it by chance is as rare as one whose sum
 * is right by chance. The IP header's own sum is left to the other peer: TCP's covers everything that is
 * learnt. */
GLOBAL int is_tcp_intact(struct __sk_buff *skb, const struct segment *segment)
{
	struct tcphdr tcp;

	if (!segment || LOAD_HEADER(skb, segment->ip.payload_at, &tcp))
		return 0;
	const struct ip *ip = &segment->ip;
	__u32 len = ip->end - ip->payload_at;
	__be16 pseudo = ~fold(pseudo_header(&ip->source, &ip->destination, len, IPPROTO_TCP));
	/* CHECKSUM_UNNECESSARY: the device has verified it. */
	if (tcp.check == pseudo || bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 1;
	return payload_sum(skb, ip, len, IPPROTO_TCP) == 0 || is_partial(skb, tcp_check_at(segment));
}

/* Notes the ends (FIN) that a segment says or acknowledges. */
static __always_inline void note_ends(const struct crossing *crossing)
{
	const struct segment *segment = crossing->segment;
	struct face *from = crossing->from, *to = crossing->to;

	if (segment->flags & FIN) {
		from->fin = end_of(segment);
		note(from, FIN_SAID);
	}
	/* Behind its FIN nobody sends anything: whatever acknowledges more has seen no such FIN. */
	if (to->known & FIN_SAID && segment->ack - to->shift == to->fin)
		note(to, FIN_TAKEN);
	if (from->known & to->known & FIN_TAKEN)
		move_stage(crossing->flow, SPLICE_SPLICED, SPLICE_CLOSING);
}

static __always_inline void learn(struct __sk_buff *skb, const struct segment *segment, struct face *from,
				  const struct face *other)
{
	struct timestamps timestamps;

	if (from->has_timestamps && !(from->known & TS_SHIFT)) {
		if (!read_timestamps(read_options(skb, segment), &timestamps))
			learn_said_clock(from, timestamps.value);
		compare_clocks(from, other);
	}
	learn_from(from, segment, window_of(segment, from));
}

/* From loopback to loopback a packet keeps the connection that conntrack has found for it on its way out,
 * which is that of the other session's half by now: answers would look invalid, and "ct state invalid drop"
 * would drop them. A redirection to ingress takes it away, and the route with it. So the packet then leaves
 * once more, by a route of its own, and comes in as any other. */
static __always_inline int begin_lap(struct __sk_buff *skb)
{
	skb->mark = ~copy_mark;
	return bpf_redirect(LOOPBACK, BPF_F_INGRESS);
}

static __always_inline int is_on_lap(struct __sk_buff *skb)
{
	return skb->ifindex == LOOPBACK && skb->mark == ~copy_mark;
}

static __always_inline int end_lap(struct __sk_buff *skb)
{
	skb->mark = 0;
	return bpf_redirect_neigh(LOOPBACK, 0, 0, 0);
}

static __always_inline int go_on_translated(struct __sk_buff *skb, const struct crossing *crossing)
{
	const struct segment *segment = crossing->segment;
	struct face *from = crossing->from, *to = crossing->to;
	int is_good = crossing->is_good;
	__u32 mtu = mtu_that_is_exceeded(skb, to);

	if (mtu)
		return is_good ? answer_too_long(skb, segment, &from->key, mtu) : drop(TOO_LONG);
	if (translate(skb, crossing))
		return drop(SPLICE_FAILED);
	if (is_good && to->known & SAID && is_before(far_edge(from, to), segment->seq + segment->payload_len))
		count(BEYOND_EDGE);
	/* Resets answer our questions about SYNs, which a peer repeats: they must not keep the addresses of
	 * an ended flow. */
	if (!(segment->flags & RST))
		from->segments++;
	count(SEGMENTS_TRANSLATED);
	return to->device == LOOPBACK && skb->ifindex == LOOPBACK ? begin_lap(skb) : send_on(skb, to);
}

static __always_inline int on_armed(struct __sk_buff *skb, const struct segment *segment, struct face *from,
				    const struct face *other)
{
	/* The kernel validates it for the socket; here only what it would take is learnt. */
	if (!(segment->flags & (SYN | RST)) && is_taken(segment, from) && is_intact(skb, segment))
		learn(skb, segment, from, other);
	return PASS;
}

static __always_inline int on_tail(struct __sk_buff *skb, struct crossing *crossing)
{
	const struct segment *segment = crossing->segment;
	struct face *from = crossing->from, *to = crossing->to;

	if (is_copy(skb))
		return on_copy(skb, segment, from);
	if (is_copy_with_another_mark(segment))
		return drop(STALE_COPIES);
	if (segment->flags & RST)
		return on_reset_in_tail(skb, segment, from);
	if (segment->flags & SYN)
		return PASS; /* our socket asks, and splice_out says the newest */
	if (is_of_socket(segment, from) && !is_late_ack(segment, from))
		return keep_for_socket(skb, segment, from);
	if (is_ack_too_old(segment, from))
		return drop(NOT_JUDGED_GOOD);
	crossing->is_tail = 1;
	crossing->is_good = is_taken(segment, from) && is_intact(skb, segment);
	if (crossing->is_good) {
		learn(skb, segment, from, to);
		note_ends(crossing);
		if (copy_to_socket(skb, segment))
			return drop(SPLICE_FAILED);
	} else {
		count(NOT_JUDGED_GOOD);
	}
	return go_on_translated(skb, crossing);
}

/* The other peer validates the reset, by its own numbers. */
static __always_inline int on_reset(struct __sk_buff *skb, struct crossing *crossing)
{
	const struct segment *segment = crossing->segment;
	struct face *from = crossing->from, *to = crossing->to;

	if (!is_reset_good(segment, from)) {
		count(NOT_JUDGED_GOOD);
	} else if (!is_intact(skb, segment)) {
		return drop(DAMAGED);
	} else if (move_stage(crossing->flow, SPLICE_SPLICED, SPLICE_DEAD)) {
		note(from, RESET);
		from->asked_ns = to->asked_ns = bpf_ktime_get_ns();
		count(RESETS);
	}
	return go_on_translated(skb, crossing);
}

static __always_inline int on_spliced(struct __sk_buff *skb, struct crossing *crossing)
{
	const struct segment *segment = crossing->segment;
	struct face *from = crossing->from, *to = crossing->to;

	if (is_copy(skb))
		return drop(STALE_COPIES);
	if (segment->flags & RST)
		return on_reset(skb, crossing);
	if (is_ack_too_old(segment, from))
		return drop(NOT_JUDGED_GOOD);
	struct spliced *flow = crossing->flow;
	int is_end = segment->flags & FIN || flow->stage == SPLICE_DEAD;
	crossing->is_good = is_taken(segment, from);
	if (crossing->is_good && !(is_end ? is_intact(skb, segment) : is_tcp_intact(skb, segment)))
		return drop(DAMAGED);
	if (crossing->is_good) {
		learn(skb, segment, from, to);
		note_ends(crossing);
		/* Compare first: an exchange takes the cache line from the CPU that has the other direction. */
		if (flow->stage == SPLICE_DEAD && move_stage(flow, SPLICE_DEAD, SPLICE_SPLICED)) {
			clear(from, RESET);
			clear(to, RESET);
			count(RESET_UNDONE);
		}
	} else {
		count(NOT_JUDGED_GOOD);
	}
	return go_on_translated(skb, crossing);
}

SEC("classifier")
int splice_in(struct __sk_buff *skb)
{
	struct segment segment = {};
	if (skb->pkt_type != 0 /* PACKET_HOST */)
		return PASS;
	if (is_on_lap(skb))
		return end_lap(skb);
	if (read_segment(skb, &segment))
		return on_error(skb);
	struct flow_key key = key_in(&segment);
	struct splice_place place;
	if (find_place(&key, &place))
		return PASS;
	struct spliced *flow = flow_at(&place);
	if (!flow)
		return PASS;
	__u32 side = place.bits & 1;
	struct face *from = &flow->faces[side], *to = &flow->faces[side ^ 1];
	struct crossing crossing = { .segment = &segment, .flow = flow, .from = from, .to = to };
	__u32 stage = flow->stage;

	if (!is_by_its_way(skb, from))
		return PASS;
	switch (stage) {
	case SPLICE_ARMED: return on_armed(skb, &segment, from, to);
	case SPLICE_TAIL: return on_tail(skb, &crossing);
	case SPLICE_SPLICED:
	case SPLICE_CLOSING:
	case SPLICE_DEAD:
		if (segment.flags & SYN && may_make_room(stage, flow) && is_new_connection(skb, &segment, from, to)) {
			make_room(flow, stage, &place);
			return PASS;
		}
		if (segment.flags & SYN)
			return on_syn_in_the_middle(skb, &segment, flow, stage, from);
		return on_spliced(skb, &crossing);
	default: return PASS;
	}
}

char _license[] SEC("license") = "Dual MIT/GPL";
