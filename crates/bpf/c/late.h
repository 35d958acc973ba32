/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A header was optional, and the sender silent, so the server has the connection without one. If the first bytes are a header after all,
 * they name a client that the server can't be told: the connection is refused. AWS NLB sends its header like that by default, with the
 * client's first payload. */
#pragma once
#include "verdicts.h"

enum late_bytes { LATE_DATA, LATE_PART, LATE_HEADER };

static __always_inline enum late_bytes late_bytes(struct __sk_buff *skb, const struct segment *segment, struct workbench *bench,
						  __u32 first)
{
	static const char signature[12] = "\r\n\r\n\0\r\nQUIT\n";
	__u32 known = first - segment->seq; /* beyond the payload: it is a later segment */

	if (known >= segment->payload_len)
		return LATE_DATA;
	__u32 have = segment->payload_len - known;
	__u32 last = (have < sizeof(signature) ? have : sizeof(signature)) - 1;
	asm volatile("%0 &= 15" : "+r"(last)); /* for the verifier */
	/* Without the bytes: the sender sends them again. */
	if (bpf_skb_load_bytes(skb, segment->payload_at + known, bench->fresh, last + 1))
		return LATE_PART;
	/* PROXY 2.1: "exactly one space" */
	if (starts_with(bench->fresh, have, "PROXY ", 6))
		return have < 6 ? LATE_PART : LATE_HEADER;
	if (starts_with(bench->fresh, have, signature, sizeof(signature)))
		return have < sizeof(signature) ? LATE_PART : LATE_HEADER;
	return LATE_DATA;
}

/* 0: the segment goes on. What may become a header stays with the sender, which sends it again, together with the rest. A segment that comes
 * out of order is judged when it is in order: the kernel takes none before the first one. */
GLOBAL int judge_late(struct __sk_buff *skb, const struct segment *segment, const struct flow_key *key, __u32 first, __u32 delta)
{
	struct workbench *bench = workbench();

	if (!segment || !key || !bench)
		return 0;
	enum late_bytes bytes = late_bytes(skb, segment, bench, first);
	if (bytes == LATE_DATA || (bytes == LATE_PART && segment->flags & FIN))
		return 0;
	struct port *port = bpf_map_lookup_elem(&tp_ports, &segment->destination_port);
	if (!port)
		return 0;
	if (!is_intact(skb, segment))
		return drop(port, REFUSED_DAMAGED);
	if (bytes == LATE_PART)
		return drop(port, EARLY_SEGMENT);
	count(port, REFUSED_AFTER_WAIT);
	tell(key, IPPROTO_TCP, REFUSED_AFTER_WAIT, 0);
	/* The devices above must not shift it. */
	return refuse(skb, segment, first + delta) == PASS ? go_on(skb) : DROP;
}
