/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests only: the decision of tcp_ingress and udp_ingress about a packet's bytes behind the Ethernet
 * header. */
#include "lib/base.h"

/* The tables are this program's own: they are not pinned. */
#undef TABLE
#define TABLE(NAME, KIND, SIZE, KEY, VALUE, FLAGS)                                                           \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_##KIND);                                                           \
		__uint(max_entries, SIZE);                                                                   \
		__uint(map_flags, FLAGS);                                                                    \
		__type(key, KEY);                                                                            \
		__type(value, VALUE);                                                                        \
	} NAME SEC(".maps")

#include "attach/proof.h"

struct answer {
	__u32 verdict;
	struct header header;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct answer);
} answers SEC(".maps");

#define ETHERNET 14

/* Nonzero: it failed. */
static __always_inline int load_all(struct __sk_buff *skb, struct header_scratch *scratch, __u32 have)
{
	for (__u32 i = 0; i < HEADER_START; i++) {
		if (i >= have)
			break;
		if (bpf_skb_load_bytes(skb, ETHERNET + i, &scratch->start[i], 1))
			return 1;
	}
	return 0;
}

SEC("classifier")
int header_check(struct __sk_buff *skb)
{
	__u32 have = skb->len - ETHERNET;
	struct header_scratch *scratch = header_scratch();
	struct answer *answer = ONLY_ENTRY(answers);

	if (!scratch || !answer || load_all(skb, scratch, have))
		return 1;
	answer->verdict = read_header(scratch, have < HEADER_START ? have : HEADER_START, STREAM);
	answer->header = scratch->header;
	return 0;
}

/* The first byte of the Ethernet header is the dialect. */
SEC("classifier")
int datagram_check(struct __sk_buff *skb)
{
	__u32 have = skb->len - ETHERNET;
	struct header_scratch *scratch = header_scratch();
	struct answer *answer = ONLY_ENTRY(answers);
	__u8 dialect;

	if (!scratch || !answer || load_all(skb, scratch, have) || bpf_skb_load_bytes(skb, 0, &dialect, 1))
		return 1;
	answer->verdict = read_datagram_header(scratch, have, dialect == DIALECT_SPP ? DIALECT_SPP : DIALECT_EVERY);
	answer->header = scratch->header;
	return 0;
}

struct piece_state {
	__u32 walk;   /* 0: before the first piece */
	__u32 before; /* bytes that came in earlier pieces */
	__u32 lacks;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct piece_state);
} piece_states SEC(".maps");

/* One more piece of a header: the packet has all bytes so far. As in on_data() of await_header.h: only the
 * start of the earlier pieces was kept. */
SEC("classifier")
int proof_check(struct __sk_buff *skb)
{
	__u32 have = skb->len - ETHERNET;
	struct header_scratch *scratch = header_scratch();
	struct piece_state *state = ONLY_ENTRY(piece_states);

	if (!scratch || !state || load_all(skb, scratch, have))
		return 1;
	enum verdict verdict = read_header(scratch, have < HEADER_START ? have : HEADER_START, STREAM);
	if (verdict != ADDRESSES && verdict != ITSELF) {
		state->lacks = verdict != NEED_MORE;
		return 0;
	}
	struct address sender = {};
	set_sender(scratch, &sender, 0);
	scratch->walk = state->walk ? state->walk : scratch->header.tlvs;
	scratch->from = state->before;
	scratch->packet_at = ETHERNET + state->before;
	state->lacks = lacks_secret(skb, have);
	state->walk = scratch->walk;
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
