/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What comes in from the two peers of a spliced session: translated from one connection to the other, as soon as truepeer has made the cut.
 * docs/internals/splice.md draws it. */
#include "splice_answer.h"
#include "splice_tail.h"

/* What a segment that was taken tells of both ends. */
static __always_inline void note_ends(struct spliced *flow, const struct segment *segment, struct face *from, struct face *to)
{
	if (segment->flags & FIN) {
		from->fin = end_of(segment);
		note(from, FIN_SAID);
	}
	/* Behind its FIN nobody sends anything: whatever acknowledges more has seen no such FIN. */
	if (to->known & FIN_SAID && segment->ack - to->shift == to->fin)
		note(to, FIN_TAKEN);
	if (from->known & to->known & FIN_TAKEN)
		move_stage(flow, SPLICE_SPLICED, SPLICE_CLOSING);
}

static __always_inline void learn(struct __sk_buff *skb, const struct segment *segment, struct face *from, const struct face *other)
{
	struct timestamps timestamps;
	__be16 window = 0;

	bpf_skb_load_bytes(skb, segment->ip.payload_at + offsetof(struct tcphdr, window), &window, sizeof(window));
	if (from->has_timestamps && !(from->known & TS_SHIFT) && !read_timestamps(read_options(skb, segment), &timestamps))
		compare_clocks(from, other, timestamps.value);
	learn_from(from, segment, (__u32)bpf_ntohs(window) << (from->peer_scale & 15));
}

/* `begin`: the number behind the last byte that was counted, here or by the session that relayed. */
static __always_inline void count_bytes(struct face *from, const struct segment *segment, __u32 begin)
{
	__u32 new = segment->seq + segment->payload_len - begin;

	if ((__s32)new > 0)
		from->bytes += new;
}

static __always_inline int go_on_translated(struct __sk_buff *skb, const struct segment *segment, struct face *from, struct face *to,
					    int is_tail, int is_good)
{
	if (translate(skb, segment, from, to, is_tail, is_good))
		return drop_for(SPLICE_FAILED);
	if (is_good && to->known & SAID && is_before(far_edge(from, to), segment->seq + segment->payload_len))
		tally(BEYOND_EDGE);
	from->segments++;
	tally(SEGMENTS_TRANSLATED);
	return send_on(skb, to);
}

static __always_inline int on_armed(struct __sk_buff *skb, const struct segment *segment, struct face *from, const struct face *other)
{
	/* The kernel judges it for the socket; here only what it would take is learnt. */
	if (!(segment->flags & (SYN | RST)) && is_taken(segment, from) && is_intact(skb, segment))
		learn(skb, segment, from, other);
	return PASS;
}

static __always_inline int on_tail(struct __sk_buff *skb, struct segment *segment, struct spliced *flow, struct face *from,
				   struct face *to)
{
	if (is_copy(skb))
		return on_copy(skb, segment, from);
	if (segment->flags & RST)
		return on_reset_in_tail(skb, segment, from);
	if (segment->flags & SYN)
		return PASS; /* our socket asks, and splice_out says the newest */
	if (is_of_socket(segment, from))
		return keep_for_socket(skb, segment, from);
	int is_good = is_taken(segment, from) && is_intact(skb, segment);
	if (is_good) {
		count_bytes(from, segment, is_before(from->end, from->kept) ? from->kept : from->end);
		learn(skb, segment, from, to);
		note_ends(flow, segment, from, to);
		copy_to_socket(skb);
	} else {
		tally(NOT_JUDGED_GOOD);
	}
	return go_on_translated(skb, segment, from, to, 1, is_good);
}

/* The other peer judges the reset, by its own numbers. */
static __always_inline int on_reset(struct __sk_buff *skb, const struct segment *segment, struct spliced *flow, struct face *from,
				    struct face *to)
{
	if (!is_reset_good(segment, from)) {
		tally(NOT_JUDGED_GOOD);
	} else if (!is_intact(skb, segment)) {
		return drop_for(DAMAGED);
	} else if (move_stage(flow, SPLICE_SPLICED, SPLICE_DEAD)) {
		note(from, RESET);
		tally(RESETS);
	}
	return go_on_translated(skb, segment, from, to, 0, 0);
}

static __always_inline int on_spliced(struct __sk_buff *skb, const struct segment *segment, struct spliced *flow, struct face *from,
				      struct face *to)
{
	if (is_copy(skb))
		return drop_for(STALE_COPIES);
	if (segment->flags & RST)
		return on_reset(skb, segment, flow, from, to);
	int is_good = is_taken(segment, from);
	/* Only ends are looked into: false numbers within the window pass with the next segment. */
	if (is_good && (segment->flags & FIN || flow->stage == SPLICE_DEAD) && !is_intact(skb, segment))
		return drop_for(DAMAGED);
	if (is_good) {
		count_bytes(from, segment, from->end);
		learn(skb, segment, from, to);
		note_ends(flow, segment, from, to);
		if (move_stage(flow, SPLICE_DEAD, SPLICE_SPLICED))
			tally(RESET_UNDONE);
	} else {
		tally(NOT_JUDGED_GOOD);
	}
	return go_on_translated(skb, segment, from, to, 0, is_good);
}

/* The connection has ended, and its addresses are used again: this one is the listener's. */
static __always_inline int make_room(struct spliced *flow, struct face *from, struct face *to, __u32 stage)
{
	if (move_stage(flow, stage, SPLICE_GONE)) {
		bpf_map_delete_elem(&ts_keys, &from->key);
		bpf_map_delete_elem(&ts_keys, &to->key);
		tally(SYN_NEW);
	}
	return PASS;
}

SEC("classifier")
int splice_in(struct __sk_buff *skb)
{
	struct segment segment = {};
	if (skb->pkt_type != 0 /* PACKET_HOST */ || read_segment(skb, &segment))
		return PASS;
	struct flow_key key = {
		.sender = segment.ip.source,
		.local = segment.ip.destination,
		.sender_port = segment.source_port,
		.local_port = segment.destination_port,
	};
	struct splice_place *place = bpf_map_lookup_elem(&ts_keys, &key);
	if (!place)
		return PASS;
	struct spliced *flow = flow_at(place);
	if (!flow)
		return PASS;
	__u32 side = place->bits & 1;
	struct face *from = &flow->faces[side], *to = &flow->faces[side ^ 1];
	__u32 stage = flow->stage;

	switch (stage) {
	case SPLICE_ARMED:
		return on_armed(skb, &segment, from, to);
	case SPLICE_TAIL:
		return on_tail(skb, &segment, flow, from, to);
	case SPLICE_SPLICED:
	case SPLICE_CLOSING:
	case SPLICE_DEAD:
		if (segment.flags & SYN && stage != SPLICE_SPLICED && is_new_connection(skb, &segment, from))
			return make_room(flow, from, to, stage);
		if (segment.flags & SYN)
			return on_syn_in_the_middle(skb, &segment, from);
		return on_spliced(skb, &segment, flow, from, to);
	default:
		return PASS;
	}
}

char _license[] SEC("license") = "Dual MIT/GPL";
