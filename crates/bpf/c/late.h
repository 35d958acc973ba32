/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A header was optional, and the sender silent, so the server has the connection without one. If the first bytes are a header after all,
 * they name a client that the server can't be told: the connection is refused. AWS NLB sends its header like that by default, with the
 * client's first payload. */
#pragma once
#include "verdicts.h"

/* client.word[1]: how many bytes of a signature have passed, and of which. They are data as long as no more of it comes: held back, they would
 * hold back the rest, too, because a sender may wait for their acknowledgement (Nagle). */
#define LATE_BYTES 0x0f
#define LATE_V2 0x10

/* Whether these bytes, behind `passed` ones, go on with the signature. Returns how many of it there are then; 0: they don't. */
static __always_inline __u32 go_on_with(const struct workbench *bench, __u32 passed, __u32 have, const char *signature, __u32 len)
{
	for (__u32 i = 0; i < len; i++)
		if (i >= passed && i - passed < have && bench->fresh[(i - passed) & 15] != (__u8)signature[i])
			return 0;
	return passed + have < len ? passed + have : len;
}

/* 0: the segment goes on. One that comes out of order is judged when it comes again or the bytes before it have come: the kernel gives the
 * server none before the first. */
GLOBAL int judge_late(struct __sk_buff *skb, const struct segment *segment, const struct flow_key *key, struct flow *flow)
{
	struct workbench *bench = workbench();

	if (!segment || !key || !flow || !bench)
		return 0;
	__u32 passed = flow->client.word[1] & LATE_BYTES, is_v2 = flow->client.word[1] & LATE_V2;
	__u32 known = flow->client.word[0] + passed - segment->seq; /* beyond the payload: nothing new */
	struct port *port = bpf_map_lookup_elem(&tp_ports, &segment->destination_port);
	if (known >= segment->payload_len || !port)
		return 0;
	if (!is_intact(skb, segment))
		return drop(port, REFUSED_DAMAGED);
	__u32 have = segment->payload_len - known;
	__u32 last = (have < 12 ? have : 12) - 1;
	asm volatile("%0 &= 15" : "+r"(last)); /* for the verifier */
	if (bpf_skb_load_bytes(skb, segment->payload_at + known, bench->fresh, last + 1))
		return drop(port, FAILED);
	if (passed == 0)
		is_v2 = bench->fresh[0] == '\r' ? LATE_V2 : 0;
	/* PROXY 2.1: "exactly one space" */
	__u32 len = is_v2 ? 12 : 6;
	__u32 begun = is_v2 ? go_on_with(bench, passed, last + 1, "\r\n\r\n\0\r\nQUIT\n", 12)
			    : go_on_with(bench, passed, last + 1, "PROXY ", 6);
	if (begun == len) {
		count(port, REFUSED_AFTER_WAIT);
		tell(key, IPPROTO_TCP, REFUSED_AFTER_WAIT, 0);
		/* The devices above must not shift it. */
		return refuse(skb, segment, flow->client.word[0] + passed + flow->delta) == PASS ? go_on(skb) : DROP;
	}
	flow->client.word[1] = begun | is_v2;
	if (!begun) {
		flow->client.word[0] = flow->client.word[1] = 0;
		flow->header = NAMES_NOBODY;
	}
	return 0;
}
