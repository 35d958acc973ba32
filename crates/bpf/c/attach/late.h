/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Headers that come too late. Where a header is optional, a silent sender's connection is served without
 * one after --header-wait. The server has then accepted the sender's address, so a header that comes later
 * can't change it: the connection is refused. AWS NLB causes this by default, because it sends its header
 * with the client's first payload. */
#pragma once
#include "attach/drop.h"

/* client.word[1] of such a flow: how many bytes of a signature have passed, and whether it is that of
 * version 2. These bytes are delivered as data. Holding them back could stop the connection: a sender may
 * wait for their acknowledgement before it sends more (Nagle). */
#define LATE_BYTES 0x0f
#define LATE_V2 0x10

/* As numbers, whose lowest byte comes first. PROXY 2.1: "exactly one space". */
#define V1_SIGNATURE 0x2059584f5250ULL     /* "PROXY " */
#define V2_SIGNATURE 0x510a0d000a0d0a0dULL /* "\r\n\r\n\0\r\nQ" */
#define V2_SIGNATURE_END 0x0a544955ULL     /* "UIT\n" */

/* The byte of a signature at `at`. */
GLOBAL int signature_byte(__u32 is_v2, __u32 at)
{
	__u64 bytes = !is_v2 ? V1_SIGNATURE : at < 8 ? V2_SIGNATURE : V2_SIGNATURE_END;

	return bytes >> (at & 7) * 8 & 0xff;
}

/* Compares `have` fresh bytes with a signature of `len` bytes, of which `passed` have come before. Returns
 * how many have come then; 0: they differ. */
GLOBAL int go_on_with(const struct header_scratch *scratch, __u32 passed, __u32 have, __u32 len)
{
	if (!scratch)
		return 0;
	for (__u32 i = 0; i < 12; i++) {
		if (i >= have || passed + i >= len)
			break;
		if (scratch->fresh[i] != signature_byte(len == 12, passed + i))
			return 0;
	}
	return passed + have < len ? passed + have : len;
}

/* The number that the sender's next byte has: those before it have been compared. */
static __always_inline __u32 next_late(const struct flow *flow)
{
	return flow->client.word[0] + (flow->client.word[1] & LATE_BYTES);
}

/* Whether an open connection has sent what this segment acknowledges: snd_una to snd_nxt. A blind attacker
 * does not know these numbers. (The kernel also takes older ones. Their sender repeats the segment with a
 * newer one.) */
static __always_inline int acknowledges_ours(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *sk = look_up(skb, segment);

	if (!sk)
		return 0;
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(sk);
	int is = tcp && segment->ack - tcp->snd_una <= tcp->snd_nxt - tcp->snd_una;
	bpf_sk_release(sk);
	return is;
}

/* The reason to drop the segment, or REFUSED_AFTER_WAIT: refuse the connection. 0: it goes on. `is_open`:
 * it has a socket. */
GLOBAL enum counter validate_late(struct __sk_buff *skb, const struct segment *segment, struct flow *flow,
			       __u32 is_open)
{
	struct header_scratch *scratch = header_scratch();

	if (!segment || !flow || !scratch)
		return 0;
	/* The kernel takes no data from these. */
	if (segment->flags & (SYN | RST) || !(segment->flags & ACK))
		return 0;
	__u32 passed = flow->client.word[1] & LATE_BYTES, is_v2 = flow->client.word[1] & LATE_V2;
	__u32 known = next_late(flow) - segment->seq;
	/* Behind a gap. The kernel would keep it, and deliver it with what fills the gap: then nobody
	 * would compare it. The sender sends it again. */
	if ((__s32)known < 0 && segment->payload_len > 0)
		return EARLY_SEGMENT;
	if (known >= segment->payload_len)
		return 0;
	if (is_open && !acknowledges_ours(skb, segment))
		return NOT_TAKEN;
	if (!is_intact(skb, segment))
		return REFUSED_DAMAGED;
	__u32 have = segment->payload_len - known;
	__u32 last = (have < 12 ? have : 12) - 1;
	asm volatile("%0 &= 15" : "+r"(last)); /* for the verifier */
	if (bpf_skb_load_bytes(skb, segment->payload_at + known, scratch->fresh, last + 1))
		return FAILED;
	if (passed == 0)
		is_v2 = scratch->fresh[0] == '\r' ? LATE_V2 : 0;
	__u32 len = is_v2 ? 12 : 6;
	__u32 begun = go_on_with(scratch, passed, last + 1, len);
	if (begun == len)
		return REFUSED_AFTER_WAIT;
	flow->client.word[1] = begun | is_v2;
	if (!begun) {
		flow->client.word[0] = flow->client.word[1] = 0;
		flow->header = NAMES_NOBODY;
	}
	return 0;
}

/* Not inlined: its stack would be added to that of all other paths. The flow stays until its socket has
 * got the RST. So tcp_egress still translates what goes to the sender, and go_on() keeps the devices above
 * from shifting what goes to the socket. */
static __noinline int end_late(struct __sk_buff *skb, struct incoming *in, const struct flow *flow)
{
	count(in->port, REFUSED_AFTER_WAIT);
	tell(&in->key, IPPROTO_TCP, REFUSED_AFTER_WAIT, 0);
	return refuse(skb, &in->segment, next_late(flow) + flow->delta, flow->delta) == PASS ? go_on(skb) : DROP;
}
