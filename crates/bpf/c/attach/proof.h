/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A header counts only with a secret in one of its TLVs (--require-tlv), as in crates/policy/src/proof.rs. */
#pragma once
#include "attach/bans.h"
#include "proxy_header/header.h"

#define MAX_SECRETS 4

/* How many TLVs are looked through at a time: in a segment, or a datagram. A header with more is refused. */
#define MAX_TLVS 32

struct proof {
	__u64 type;                         /* of the TLV; 0: nothing is demanded */
	struct secret secrets[MAX_SECRETS]; /* of length 0: none */
};

_Static_assert(sizeof(struct proof) == 8 + 72 * MAX_SECRETS, "src/layout.rs");

/* By the attachment (in the place of a port) and the sender. */
TABLE(tp_proofs, LPM_TRIE, 4096, struct ban_prefix, struct proof, BPF_F_NO_PREALLOC);

/* Whose header it is, for lacks_secret(). */
static __always_inline void set_sender(struct header_scratch *scratch, const struct address *sender,
				       __u8 group)
{
	scratch->sender = (struct ban_prefix){ .bits = 160, .key = { .port = group, .client = *sender } };
}

/* Compares all of the value with all of each secret: no time tells how much of it is right. */
GLOBAL int is_secret(const struct secret *value, const struct proof *proof)
{
	int is = 0;

	if (!value || !proof)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < MAX_SECRETS; i++) {
		__u64 differs = value->len ^ proof->secrets[i].len;
		for (int word = 0; word < SECRET_MAX / 8; word++)
			differs |= value->words[word] ^ proof->secrets[i].words[word];
		is |= differs == 0;
	}
	return is;
}

/* Loads `len` bytes (1 to 64) at `at` of the header into scratch->value. They are in the packet from
 * scratch->from on; of those before, which came in earlier segments, only the header's start was kept. */
GLOBAL int load_part(struct __sk_buff *skb, struct header_scratch *scratch, __u32 at, __u32 len)
{
	if (!scratch)
		return -1;
	struct secret *value = &scratch->value;
	__u32 last = len - 1;

	__builtin_memset(value, 0, sizeof(*value));
	value->len = len;
	asm volatile("%0 &= 63" : "+r"(last)); /* for the verifier */
	if (at >= scratch->from)
		return bpf_skb_load_bytes(skb, scratch->packet_at + at - scratch->from, value->words, last + 1);
	for (__u32 i = 0; i < SECRET_MAX && i <= last; i++, at++) {
		asm volatile("" : "+r"(at)); /* for the verifier: what is compared is the index */
		if (at >= HEADER_START)
			return -1;
		((__u8 *)value->words)[i] = scratch->start[at];
	}
	return 0;
}

/* Looks through the TLVs that have come, from scratch->walk on: `have` bytes of the header are here. Nonzero:
 * it lacks what its sender must send. Version 1 has no TLVs (its walk begins at 0): it ends nowhere. */
GLOBAL int lacks_secret(struct __sk_buff *skb, __u32 have)
{
	struct header_scratch *scratch = header_scratch();
	const struct proof *proof = scratch ? bpf_map_lookup_elem(&tp_proofs, &scratch->sender) : 0;

	if (!proof || !proof->type)
		return 0;
	__u8 *tlv = (__u8 *)scratch->value.words;

	for (int i = 0; i < MAX_TLVS; i++) {
		__u32 at = scratch->walk & ~WALK_FOUND;
		if (at + 3 > have || at >= scratch->header.len)
			break;
		if (load_part(skb, scratch, at, 3))
			return 1;
		__u32 size = tlv[1] << 8 | tlv[2];
		if (tlv[0] == proof->type) {
			if (scratch->walk & WALK_FOUND || size == 0 || size > SECRET_MAX)
				return 1;
			if (at + 3 + size > have)
				break;
			if (load_part(skb, scratch, at + 3, size) || !is_secret(&scratch->value, proof))
				return 1;
			scratch->walk |= WALK_FOUND;
		}
		scratch->walk += 3 + size;
	}
	return have >= scratch->header.len && scratch->walk != (WALK_FOUND | scratch->header.len);
}
