/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* TAIL: two carriers at once. Our sockets go on delivering what they had before the cut, and still need the
 * peers' acknowledgements. Each such socket gets a bare ACK, made of a copy of the segment, with the numbers
 * that the socket believes. */
#pragma once
#include "offload/translate.h"

/* Marks the copies until they come in once more. Set to a random value when the program is loaded. Only the
 * mark stays on a copy (skb_scrub_packet()). */
const volatile __u32 copy_mark = 0x7ee7c0b7;

static __always_inline int is_copy(struct __sk_buff *skb)
{
	return skb->mark == copy_mark;
}

/* Another program in front of this one may give packets a mark of its own. Each copy would then be translated
 * and copied again, without end. So copies have all reserved bits of TCP, too, which nobody sends. A forged
 * segment that has them is dropped. */
static __always_inline int is_copy_with_another_mark(const struct segment *segment)
{
	return segment->reserved == RESERVED;
}

static __always_inline int set_reserved(struct __sk_buff *skb, const struct segment *segment, __u8 bits)
{
	const __u32 at = segment->ip.payload_at + 12;
	__u8 byte;

	if (bpf_skb_load_bytes(skb, at, &byte, sizeof(byte)))
		return -1;
	byte = (byte & ~RESERVED) | bits;
	return bpf_skb_store_bytes(skb, at, &byte, sizeof(byte), 0);
}

/* Nonzero: the segment is spoilt.
 *
 * On loopback the copy leaves once more and keeps its route. A redirection to ingress drops the route, and
 * the kernel takes an address of this host only with one. The socket may remember none: packets that come
 * while it is in a system call leave none. Without any copy, the session stands still for ever. */
static __always_inline int copy_to_socket(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 mark = skb->mark;
	__u64 how = skb->ifindex == LOOPBACK ? 0 : BPF_F_INGRESS;

	if (set_reserved(skb, segment, RESERVED))
		return -1;
	skb->mark = copy_mark;
	if (bpf_clone_redirect(skb, skb->ifindex, how))
		count(SPLICE_FAILED);
	skb->mark = mark;
	count(COPIES_TO_SOCKET);
	return set_reserved(skb, segment, segment->reserved);
}

/* Call only for intact segments: the ACK gets a new sum. It keeps little on the stack, for the verifier of
 * Linux 6.1. */
static __noinline int become_ack(struct __sk_buff *skb, const struct segment *segment, __u32 seq, __u32 ack)
{
	struct tcphdr tcp;

	if (!segment || bpf_skb_load_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp)))
		return -1;
	tcp.seq = bpf_htonl(seq);
	tcp.ack_seq = bpf_htonl(ack);
	((__u8 *)&tcp)[12] &= ~RESERVED;
	return become_bare_ack(skb, segment, &tcp, read_options(skb, segment), 0, 0);
}

/* The copy comes in. The peer may have bytes of both carriers: an ACK beyond what our socket itself has sent
 * would be dropped whole. */
static __always_inline int on_copy(struct __sk_buff *skb, const struct segment *segment,
				   const struct face *face)
{
	__u32 ack = is_before(face->own_nxt, segment->ack) ? face->own_nxt : segment->ack;
	/* Every second copy has the number that the socket expects: it always takes the acknowledgement. But
	 * it ignores a window that is numbered before a segment that it has already, also one ahead of a gap
	 * (SND.WL1 of RFC 9293). So the other copies are numbered after everything that was found valid. These
	 * the socket may discard: without memory for such a segment it closes its window. */
	__u32 seq = is_before(face->kept, face->cut) && face->segments & 1 ? face->cut : face->kept;

	skb->mark = 0;
	return become_ack(skb, segment, seq, ack) ? drop(SPLICE_FAILED) : PASS;
}

/* The reset goes to our socket, with the number that it expects; truepeer then ends the session as any
 * other. */
static __always_inline int on_reset_in_tail(struct __sk_buff *skb, const struct segment *segment,
					    const struct face *face)
{
	if (!is_reset_good(segment, face))
		return drop(NOT_JUDGED_GOOD);
	if (!is_intact(skb, segment))
		return drop(DAMAGED);
	count(RESETS);
	shift_seq(skb, segment, face->kept - segment->seq);
	return PASS;
}

/* Our socket gets the whole segment: it is from before the cut, or its bytes slipped to the socket while
 * truepeer made the cut. */
static __always_inline int is_of_socket(const struct segment *segment, const struct face *face)
{
	return is_before(segment->seq, face->kept);
}

static __always_inline int keep_for_socket(struct __sk_buff *skb, const struct segment *segment,
					   struct face *face)
{
	/* The socket takes all bytes of an undamaged segment within the window, also those beyond `kept`. */
	if (is_before(face->kept, end_of(segment)) && is_taken(segment, face) && is_intact(skb, segment)) {
		raise_limit(&face->kept, end_of(segment));
		raise_end(face, end_of(segment));
	}
	count(KEPT_FOR_SOCKET);
	return PASS;
}
