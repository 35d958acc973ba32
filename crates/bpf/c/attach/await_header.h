/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Segments of a handshake whose header has not come yet, or not all of it. */
#pragma once
#include "attach/establish.h"

static __always_inline int may_be_absent(const struct port *port, const struct flow_key *key)
{
	return sender_rule(&key->remote, port->group) == RULE_OPTIONAL;
}

/* A backend that speaks first must not wait longer. */
static __always_inline int is_silent(const struct segment *segment, const struct port *port,
				     const struct pending *pending)
{
	struct terms *terms = terms_of(port);

	return terms && pending->have == 0 && offset_of(segment, pending) == 0 &&
	       bpf_ktime_get_ns() - pending->born_ns >= terms->header_wait_ns;
}

/* An ACK without data. If it follows bytes that have not arrived, the sender has written: a header may be
 * lost. */
static __always_inline int on_bare_ack(struct __sk_buff *skb, struct incoming *in, __u32 tsval)
{
	if (is_silent(&in->segment, in->port, in->pending) && may_be_absent(in->port, &in->key) &&
	    is_intact(skb, &in->segment) &&
	    (!in->pending->is_by_cookie || has_cookie(skb, &in->segment, in->pending)))
		return go_on_without(skb, in, 1);
	if (tsval && tsval != in->pending->ts_recent)
		learn(skb, &in->segment, in->pending, tsval);
	return drop(in->port, HELD_ACK);
}

/* Appends the `fresh` bytes at `from` to the stored start of the header. */
GLOBAL int gather(struct __sk_buff *skb, struct header_scratch *scratch, struct pending *pending, __u32 from,
		  __u32 fresh)
{
	if (!scratch || !pending)
		return -1;
	__builtin_memcpy(scratch->start, pending->start, HEADER_START);
	__u32 have = pending->have;
	if (have >= HEADER_START)
		return 0;
	__u32 take = fresh < HEADER_START - have ? fresh : HEADER_START - have;
	__u32 len = take - 1;
	asm volatile("%0 &= 127" : "+r"(len)); /* for the verifier: 1 to 128 bytes, and never more than
						* `fresh` holds */
	if (bpf_skb_load_bytes(skb, from, scratch->fresh, len + 1))
		return -1;
	for (__u32 i = 0; i < HEADER_START; i++) {
		if (i >= take || have + i >= HEADER_START)
			break;
		scratch->start[have + i] = scratch->fresh[i];
	}
	__builtin_memcpy(pending->start, scratch->start, HEADER_START);
	return 0;
}

/* A part of a header: old data for the kernel, which acknowledges it at once. */
static __always_inline int on_part(struct __sk_buff *skb, struct incoming *in, __u32 have)
{
	__u32 family = 0;

	if (in->segment.flags & FIN)
		return refuse_for(skb, in, REFUSED_NO_HEADER);
	enum socket_state state = find_socket(skb, &in->segment, 0, &family);
	if (state == LISTENS && !in->pending->is_by_cookie) {
		enum counter refusal = why_not_again(in->port, in->pending);
		if (refusal)
			return refuse_for(skb, in, refusal);
		/* It stays unacknowledged, so the sender sends it again, together with the rest. */
		return drop(in->port, EARLY_SEGMENT);
	}
	/* Behind a cookie there is nobody to acknowledge it. */
	if (state != HALF_OPEN)
		return refuse_for(skb, in, REFUSED_SPLIT_COOKIE);
	count(in->port, HEADER_SPLIT);
	in->pending->have = have;
	shift_seq(skb, &in->segment, in->pending->guess - have);
	return go_on(skb);
}

/* Old for the kernel, too: it acknowledges it again. If it has given the handshake up, it would answer with a
 * RST. */
static __always_inline int on_old_data(struct __sk_buff *skb, struct incoming *in)
{
	__u32 family = 0;

	if (!in->pending->is_by_cookie && find_socket(skb, &in->segment, 0, &family) == LISTENS &&
	    !why_not_again(in->port, in->pending)) {
		if (!is_intact(skb, &in->segment))
			return drop(in->port, REFUSED_DAMAGED);
		say_where(skb, &in->segment, in->pending);
		return DROP;
	}
	shift_seq(skb, &in->segment, in->pending->guess - in->pending->have);
	return go_on(skb);
}

/* Data, or FIN. */
static __always_inline int on_data(struct __sk_buff *skb, struct incoming *in, __u32 tsval)
{
	__u32 known = in->pending->have - offset_of(&in->segment, in->pending);
	int is_end = in->segment.flags & FIN;
	if ((__s32)known < 0)
		return drop(in->port, EARLY_SEGMENT);
	if (known > in->segment.payload_len || (known == in->segment.payload_len && !is_end))
		return on_old_data(skb, in);
	if (in->pending->is_by_cookie &&
	    (offset_of(&in->segment, in->pending) != 0 || !has_cookie(skb, &in->segment, in->pending)))
		return drop(in->port, NOT_TAKEN);
	if (!learn(skb, &in->segment, in->pending, tsval))
		return drop(in->port, REFUSED_DAMAGED);
	__u32 fresh = in->segment.payload_len - known;
	if (fresh == 0 && in->pending->have == 0 && may_be_absent(in->port, &in->key))
		return go_on_without(skb, in, 0);
	if (fresh == 0)
		return refuse_for(skb, in, REFUSED_NO_HEADER);
	struct header_scratch *scratch = header_scratch();
	struct terms *terms = terms_of(in->port);
	if (!scratch || !terms || gather(skb, scratch, in->pending, in->segment.payload_at + known, fresh))
		return drop(in->port, FAILED);

	__u32 have = in->pending->have + fresh;
	enum verdict verdict = read_header(scratch, have < HEADER_START ? have : HEADER_START, STREAM);
	if (verdict == NOT_PROXY && may_be_absent(in->port, &in->key))
		return go_on_without(skb, in, 0);
	if (verdict == NOT_PROXY)
		return refuse_for(skb, in, REFUSED_NO_HEADER);
	if (verdict == MALFORMED)
		return refuse_for(skb, in, REFUSED_MALFORMED);
	if (scratch->header.len > terms->header_max)
		return refuse_for(skb, in, REFUSED_TOO_LONG);
	scratch->walk = in->pending->walk ? in->pending->walk : scratch->header.tlvs;
	if (verdict != NEED_MORE && lacks_proof(skb, in, scratch, have))
		return refuse_for(skb, in, REFUSED_UNPROVED);
	in->pending->walk = scratch->walk;
	if (verdict == NEED_MORE || have < scratch->header.len)
		return on_part(skb, in, have);
	return on_whole(skb, in, &scratch->header, verdict, have - scratch->header.len);
}
