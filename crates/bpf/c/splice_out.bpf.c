/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What our own sockets send to the peers of a session that is being spliced.
 *
 *   ARMED   it is learnt from: what the peer was told, and our socket's clock
 *   TAIL    it says the newest: our socket does not know what was translated, and the peer would discard what knows less (RFC 5961, PAWS)
 *   then    the kernel knows nothing of the connection, and what it would say of it is not said
 */
#include "splice_tail.h"

static __always_inline void learn_own(struct __sk_buff *skb, const struct segment *segment, struct face *face, const struct tcphdr *tcp,
				      struct options *options)
{
	struct timestamps timestamps;
	__u32 end = end_of(segment), window = (__u32)bpf_ntohs(tcp->window) << (face->own_scale & 15);

	if (face->known & TOLD)
		raise(&face->own_nxt, end);
	else
		face->own_nxt = end;
	note_told(face, end, segment->ack, segment->ack + window);
	face->device = skb->ifindex;
	if (!face->has_timestamps || read_timestamps(options, &timestamps))
		return;
	if (!(face->known & CLOCK)) {
		face->tsval = timestamps.value;
		face->clock = timestamps.value - milliseconds();
		note(face, CLOCK);
	}
	raise(&face->tsval, timestamps.value);
}

/* Nothing but numbers that the peer was told already. */
static __always_inline void say_the_newest(struct __sk_buff *skb, const struct segment *segment, const struct face *face)
{
	struct rewriting rewriting = {};
	struct timestamps timestamps;

	if (!(face->known & FAR_EDGE) || begin_rewriting(skb, segment, &rewriting))
		return;
	__u32 ack = is_before(segment->ack, face->ack) ? face->ack : segment->ack;
	__u32 window = is_before(ack, face->far_edge) ? face->far_edge - ack : 0;
	rewriting.is.ack_seq = bpf_htonl(ack);
	rewriting.is.window = scaled(window, face);
	if (!read_timestamps(rewriting.options, &timestamps) && is_before(timestamps.value, face->tsval))
		set_option_word(rewriting.options, rewriting.options->timestamps + 2, face->tsval);
	if (finish_rewriting(skb, segment, &rewriting))
		tally(SPLICE_FAILED);
	else
		tally(OWN_RAISED);
}

static __always_inline int is_key(const struct segment *segment, const struct flow_key *key)
{
	return segment->source_port == key->local_port && segment->destination_port == key->sender_port &&
	       segment->ip.destination.word[3] == key->sender.word[3] && segment->ip.source.word[3] == key->local.word[3];
}

static __always_inline int on_own(struct __sk_buff *skb, const struct splice_place *place)
{
	struct segment segment = {};
	struct tcphdr tcp;

	struct spliced *flow = flow_at(place);
	if (!flow || (flow->stage != SPLICE_ARMED && flow->stage != SPLICE_TAIL))
		return PASS;
	struct face *face = &flow->faces[place->bits & 1];
	if (read_segment(skb, &segment) || !is_key(&segment, &face->key) || segment.flags & (SYN | RST) || !(segment.flags & ACK))
		return PASS;
	if (bpf_skb_load_bytes(skb, segment.ip.payload_at, &tcp, sizeof(tcp)))
		return PASS;
	learn_own(skb, &segment, face, &tcp, read_options(skb, &segment));
	if (flow->stage == SPLICE_TAIL)
		say_the_newest(skb, &segment, face);
	return PASS;
}

/* Of no socket: the kernel's answer to a segment that it knows no connection for, such as a fragment. */
static __always_inline int on_reset_of_nobody(struct __sk_buff *skb)
{
	struct segment segment = {};

	if (read_segment(skb, &segment) || !(segment.flags & RST))
		return PASS;
	struct flow_key key = {
		.sender = segment.ip.destination,
		.local = segment.ip.source,
		.sender_port = segment.destination_port,
		.local_port = segment.source_port,
	};
	struct splice_place *place = bpf_map_lookup_elem(&ts_keys, &key);
	if (!place)
		return PASS;
	struct spliced *flow = flow_at(place);
	if (!flow || flow->stage < SPLICE_SPLICED || flow->stage == SPLICE_GONE)
		return PASS;
	return drop_for(OWN_RESETS_DROPPED);
}

SEC("classifier")
int splice_out(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk && sk->type == SOCK_STREAM) {
		struct splice_place *place = bpf_sk_storage_get(&ts_sockets, sk, 0, 0);
		return place ? on_own(skb, place) : PASS;
	}
	/* What came in from outside, translated segments among it, is not the kernel's own word. */
	return skb->ingress_ifindex ? PASS : on_reset_of_nobody(skb);
}

char _license[] SEC("license") = "Dual MIT/GPL";
