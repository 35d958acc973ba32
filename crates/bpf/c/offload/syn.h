/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* SYNs in spliced flows. */
#pragma once
#include "offload/translate.h"

/* tcp_invalid_ratelimit of the kernel: an attacker must not have many ACKs sent to a peer. */
#define ASK_AGAIN_NS 500000000ULL

/* Becomes the ACK that RFC 5961, 4 demands: a peer that has forgotten the connection answers it with a reset
 * of the exact number. A peer that has not takes the window (tcp_may_update_window()): so the edge stays
 * where the newest one was. Without timestamps it is never older than the peer's newest. */
static __noinline int become_question(struct __sk_buff *skb, const struct segment *segment,
				      const struct face *face)
{
	if (!segment || !face)
		return -1;
	struct tcphdr question = {
		.seq = bpf_htonl(face->nxt),
		.ack_seq = bpf_htonl(face->ack),
		.ack = 1,
		.window = scaled(reach(face->ack, face->edge), face),
	};

	return become_reply(skb, segment, &question);
}

/* Never to the other peer: it could take it for a new connection, and a header would follow. The question
 * leaves by the route to the peer, not to the link address that the SYN came from: it tells the numbers of
 * the session, and the SYN may be forged. */
static __always_inline int on_syn_in_the_middle(struct __sk_buff *skb, const struct segment *segment,
						struct spliced *flow, __u32 stage, struct face *face)
{
	__u64 now = bpf_ktime_get_ns();
	/* In DEAD the upstream face has the time of the reset. */
	__u64 *asked_ns = stage == SPLICE_DEAD ? &flow->faces[0].asked_ns : &face->asked_ns;

	if (!(face->known & TOLD) || now - *asked_ns < ASK_AGAIN_NS)
		return drop(SYN_DROPPED);
	if (!is_intact(skb, segment))
		return drop(DAMAGED);
	*asked_ns = now;
	if (become_question(skb, segment, face))
		return drop(SPLICE_FAILED);
	count(SYN_ASKED);
	return send_on(skb, face);
}

/* The other peer may not believe a reset; the session's next segment then undoes it. So a SYN takes the
 * addresses only a second later. */
#define DEAD_FOR_NS 1000000000ULL

static __always_inline int may_make_room(__u32 stage, const struct spliced *flow)
{
	return stage == SPLICE_CLOSING ||
	       (stage == SPLICE_DEAD && bpf_ktime_get_ns() - flow->faces[1].asked_ns >= DEAD_FOR_NS);
}

/* As TIME_WAIT validates a SYN (tcp_timewait_state_process(), RFC 6191): a higher number than all of the old
 * connection, or a newer timestamp; an older one never. The other peer was told this peer's newest
 * timestamp. */
static __always_inline int is_new_connection(struct __sk_buff *skb, const struct segment *segment,
					     const struct face *face, const struct face *other)
{
	if ((segment->flags & (SYN | ACK | RST)) != SYN || !(face->known & SAID))
		return 0;
	int is_new = is_before(face->end, segment->seq);
	struct timestamps timestamps;
	if (face->known & TS_SHIFT && !read_timestamps(read_options(skb, segment), &timestamps)) {
		__u32 newest = other->tsval - face->ts_shift;

		if (is_before(newest, timestamps.value))
			is_new = 1;
		else if (timestamps.value != newest)
			is_new = 0;
	}
	return is_new && is_intact(skb, segment);
}
