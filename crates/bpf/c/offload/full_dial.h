/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* From the sender's header to the backend's answer. */
#pragma once
#include "offload/full_listener.h"

/* A backend that takes longer to answer is truepeer's to connect to, with its own time-out. */
#define PATIENCE_NS 3000000000ULL

/* The holder is a program on another CPU and needs the lock for some microseconds. */
#define LOCK_TRIES 64

/* Not the kernel's spin lock: under that, a program may not read packets. */
GLOBAL int take_lock(struct dial *dial)
{
	if (!dial)
		return 0;
	for (__u32 i = 0; i < LOCK_TRIES; i++)
		if (__sync_val_compare_and_swap((__u32 *)&dial->is_busy, 0, 1) == 0)
			return 1;
	return 0;
}

static __always_inline void release_lock(struct dial *dial)
{
	__sync_lock_test_and_set((__u32 *)&dial->is_busy, 0);
}

/* The key may change at once unless the caller holds the dial's lock. */
static __always_inline const struct flow_key *key_of_dial(__u32 bits)
{
	__u32 place = bits >> 1;
	struct dial *dial = bpf_map_lookup_elem(&tf_dials, &place);

	if (!dial)
		return 0;
	return bits & 1 ? &dial->up : &dial->down;
}

#define LAST_DIAL_BUCKET(secret) (DIAL_BUCKETS - 1)
KEY_TABLE(slot_of_dial, enter_dial_key, remove_dial_key, tf_dialled, LAST_DIAL_BUCKET, key_of_dial)

/* Frees the dial's place. The caller holds its lock. */
static __always_inline void remove_dial(struct dial *dial)
{
	__u32 down = dial->place << 1;

	remove_dial_key(&dial->down, down);
	remove_dial_key(&dial->up, down | 1);
	dial->state = NO_DIAL;
}

#ifndef BEFORE_LOCK
#define BEFORE_LOCK() /* full_in_test.bpf.c */
#endif

enum found_dial { NONE_FOUND, FOUND, IS_BUSY };

/* FOUND: `found` is the dial of this key, and the caller holds its lock. The key is compared under the lock:
 * since the look-up another connection may have got the place. */
static __always_inline enum found_dial find_dial(const struct flow_key *key, int is_up, struct dial **found)
{
	__u32 slot = slot_of_dial(key), place = (slot & SLOT_MASK) >> 1;

	if (!slot)
		return NONE_FOUND;
	struct dial *dial = bpf_map_lookup_elem(&tf_dials, &place);
	BEFORE_LOCK();
	if (!dial || !take_lock(dial))
		return IS_BUSY;
	if (dial->state != NO_DIAL && is_same_key(is_up ? &dial->up : &dial->down, key)) {
		*found = dial;
		return FOUND;
	}
	release_lock(dial);
	return IS_BUSY;
}

#define FREE_TRIES 16

/* The caller holds the lock of the place: of the next FREE_TRIES places a free one or, if there is none, the
 * first: it is the oldest of them. */
static __always_inline struct dial *new_dial(__u32 *place)
{
	__u32 *newest = ONLY_ENTRY(tf_newest);

	if (!newest)
		return 0;
	__u32 first = __sync_fetch_and_add(newest, 1);
	for (__u32 i = 0; i <= FREE_TRIES; i++) {
		*place = (first + i % FREE_TRIES) % MAX_DIALS;
		struct dial *dial = bpf_map_lookup_elem(&tf_dials, place);
		if (!dial)
			return 0;
		if ((dial->state != NO_DIAL && i < FREE_TRIES) || !take_lock(dial))
			continue;
		if (dial->state == NO_DIAL)
			return dial;
		if (i == FREE_TRIES) {
			remove_dial(dial);
			return dial;
		}
		release_lock(dial);
	}
	return 0;
}

/* The header leaves nothing to decide. One with TLVs goes to truepeer, which checks them. */
static __always_inline int is_clear(const struct header_scratch *scratch, const struct segment *segment,
				    const struct full_listener *listener)
{
	const struct header *header = &scratch->header;
	struct prefix client = host(&header->client);

	if (header->client_version != segment->ip.version || !header->client_port)
		return 0;
	if (header->len > segment->payload_len || header->len > listener->header_max)
		return 0;
	if (!header->is_v1 && header->len != V2_FIXED + (header->client_version == 4 ? V2_INET : V2_INET6))
		return 0;
	/* ::ffff:a.b.c.d is an IPv4 client: its backend is the IPv4 one. */
	if (header->client_version == 6 && is_ipv4(&header->client))
		return 0;
	/* A link-local address needs its device. */
	if (header->client_version == 6 && (header->client.word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return 0;
	return !is_claim_refused(&client, listener->group) && !is_denied(&client, listener->group);
}

/* Nonzero: the segment does not begin with a whole header that has addresses. */
static __always_inline int read_start(struct __sk_buff *skb, const struct segment *segment,
				      struct header_scratch *scratch)
{
	__u32 have = segment->payload_len < HEADER_START ? segment->payload_len : HEADER_START;
	__u32 last = have - 1;

	asm volatile("%0 &= 127" : "+r"(last)); /* for the verifier */
	if (last >= HEADER_START || bpf_skb_load_bytes(skb, segment->payload_at, scratch->start, last + 1))
		return -1;
	return read_header(scratch, have, STREAM) == ADDRESSES ? 0 : -1;
}

/* Appends the segment's bytes to those that the dial holds. Nonzero: they don't fit. */
static __always_inline int hold(struct __sk_buff *skb, const struct segment *segment, struct dial *dial)
{
	__u32 from = dial->have, last = segment->payload_len - 1;

	if (from + segment->payload_len > HOLD)
		return -1;
	asm volatile("%0 &= 1023" : "+r"(from)); /* for the verifier */
	asm volatile("%0 &= 1023" : "+r"(last));
	if (bpf_skb_load_bytes(skb, segment->payload_at, dial->held + from, last + 1))
		return -1;
	dial->have = from + last + 1;
	return 0;
}

/* The client's SYN, made of the sender's segment. */
static __always_inline int ask_backend(struct __sk_buff *skb, const struct segment *segment,
				       const struct dial *dial)
{
	struct reply *reply =
		new_reply(&dial->up.local, dial->up.local_port, &dial->up.remote, dial->up.remote_port);

	if (!reply)
		return drop_full(FULL_FAILED);
	reply->tcp.seq = bpf_htonl(dial->up_isn);
	reply->tcp.syn = 1;
	reply->tcp.window = bpf_htons(65535);
	with_syn_options(reply, dial->mss, dial->scale, dial->up_tsval, 0);
	__u32 device = dial->up_device;
	skb->mark = dial->up_mark;
	if (write_reply(skb, segment, reply, 0))
		return drop_full(FULL_FAILED);
	return send_by(skb, device);
}

/* The client's address and port are in use towards the backend, or are asked for by another sender. */
static __always_inline int is_tuple_taken(struct __sk_buff *skb, const struct flow_key *up, __u8 version)
{
	struct segment answer = {
		.ip = { .source = up->remote, .destination = up->local, .version = version },
		.source_port = up->remote_port,
		.destination_port = up->local_port,
	};

	return slot_of_dial(up) || slot_of_flow(up) || socket_there(skb, &answer) == OTHER_THERE;
}

/* The header is clear: a dial begins, or truepeer's listener takes the connection. */
static __always_inline int dial_backend(struct __sk_buff *skb, const struct segment *segment,
					const struct opening *opening, const struct header *header)
{
	const struct full_listener *listener = opening->listener;
	struct full_backend *backend = backend_at(&listener->backend, listener->backend_port);
	struct flow_key up = {
		.remote = listener->backend,
		.remote_port = listener->backend_port,
		.local = header->client,
		.local_port = header->client_port,
	};
	__u32 place;

	/* A client that is its own backend: the SYN would come back to the backend from itself. */
	if (!backend || (up.local_port == up.remote_port && is_same_address(&up.local, &up.remote)))
		return hand_over(skb, segment, opening);
	if (is_tuple_taken(skb, &up, segment->ip.version)) {
		count_full(TUPLE_TAKEN);
		return hand_over(skb, segment, opening);
	}
	struct dial *dial = new_dial(&place);
	if (!dial)
		return hand_over(skb, segment, opening);
	__builtin_memset(dial, 0, offsetof(struct dial, is_busy));
	dial->place = place;
	dial->down = *opening->key;
	dial->up = up;
	dial->began_ns = opening->now;
	dial->listener = listener->number | (header->is_v1 ? BY_V1 : 0);
	dial->isn = segment->seq - 1;
	dial->our_isn = segment->ack - 1;
	dial->header_len = header->len;
	dial->tsval = opening->timestamps->value;
	dial->tsecr = opening->timestamps->echo;
	dial->clock = opening->clock;
	dial->up_isn = number_towards(&dial->up, opening->now);
	dial->up_tsval = clock_towards(&dial->up.local, &dial->up.remote, opening->now);
	dial->device = skb->ifindex;
	dial->up_device = backend->device;
	dial->up_mark = backend->mark;
	dial->window = segment->window;
	dial->scale = opening->options & 15;
	dial->mss = mss_of_class(opening->options >> 4);
	bpf_skb_load_bytes(skb, 0, dial->link, sizeof(dial->link));
	if (hold(skb, segment, dial)) {
		release_lock(dial);
		return hand_over(skb, segment, opening);
	}
	int refused = enter_dial_key(&dial->down, place << 1);
	if (!refused && (refused = enter_dial_key(&dial->up, place << 1 | 1)))
		remove_dial_key(&dial->down, place << 1);
	if (refused) {
		release_lock(dial);
		/* Another CPU has the same header, or another sender names this client. Drop the segment:
		 * when it comes again, it finds the other's dial. */
		if (refused == KEY_TAKEN)
			return drop_full(TOO_EARLY);
		count_full(NO_PLACE);
		return hand_over(skb, segment, opening);
	}
	dial->state = DIALLING;
	count_full(HEADER_TAKEN);
	int fate = ask_backend(skb, segment, dial);
	release_lock(dial);
	return fate;
}

/* The sender sends more before the backend has answered. The caller holds the dial's lock. */
static __always_inline int on_dialling(struct __sk_buff *skb, const struct segment *segment,
				       struct dial *dial, const struct opening *opening)
{
	__u32 offset = segment->seq - (dial->isn + 1);

	if (skb->ifindex != dial->device || segment->ack != dial->our_isn + 1 || !segment->payload_len ||
	    !is_intact(skb, segment))
		return drop_full(NOT_OURS);
	if (offset == 0 && (dial->state == GIVEN_UP || bpf_ktime_get_ns() - dial->began_ns > PATIENCE_NS)) {
		remove_dial(dial);
		return hand_over(skb, segment, opening);
	}
	if (dial->state != DIALLING)
		return drop_full(TOO_EARLY);
	if (offset == 0) {
		if (!is_plain(segment))
			return drop_full(NOT_OURS);
		count_full(HEADER_REPEATED);
		return ask_backend(skb, segment, dial);
	}
	if (offset != dial->have || segment->flags & FIN)
		return drop_full(TOO_EARLY);
	if (!hold(skb, segment, dial))
		dial->window = segment->window;
	return DROP;
}
