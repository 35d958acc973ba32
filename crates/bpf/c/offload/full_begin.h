/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The backend has answered: a flow begins, or truepeer takes the connection. */
#pragma once
#include "offload/full_dial.h"

/* The flag of a redirection to loopback. A packet that came in by loopback has a route and must go out to
 * keep it: without a route the kernel drops loopback's addresses as martians. */
static __always_inline __u64 by_loopback(struct __sk_buff *skb)
{
	return skb->ifindex == LOOPBACK ? 0 : BPF_F_INGRESS;
}

/* The packet becomes the sender's header once more, and comes in by the sender's device: truepeer's listener
 * takes it. */
static __always_inline int give_back(struct __sk_buff *skb, const struct segment *segment, struct dial *dial)
{
	struct reply *reply = new_reply(&dial->down.remote, dial->down.remote_port, &dial->down.local,
					   dial->down.local_port);
	__u32 device = dial->device;

	dial->state = GIVEN_UP;
	if (!reply)
		return drop_full(FULL_FAILED);
	reply->tcp.seq = bpf_htonl(dial->isn + 1);
	reply->tcp.ack_seq = bpf_htonl(dial->our_isn + 1);
	reply->tcp.ack = reply->tcp.psh = 1;
	reply->tcp.window = dial->window;
	with_timestamps(reply, dial->tsval, dial->tsecr);
	reply->payload_len = dial->have;
	if (write_reply(skb, segment, reply, dial))
		return drop_full(FULL_FAILED);
	bpf_skb_store_bytes(skb, 0, dial->link, sizeof(dial->link), 0);
	return bpf_redirect(device, device == LOOPBACK ? by_loopback(skb) : BPF_F_INGRESS);
}

/* Resets the backend's connection and gives the sender's to truepeer, which connects again. */
static __always_inline int undo(struct __sk_buff *skb, const struct segment *segment, struct dial *dial,
				enum full_counter reason)
{
	struct ethhdr link;

	count_full(reason);
	if (become_reset(skb, segment) || bpf_skb_load_bytes(skb, 0, &link, sizeof(link)))
		return drop_full(FULL_FAILED);
	swap_link_addresses(skb);
	bpf_clone_redirect(skb, skb->ifindex, skb->ifindex == LOOPBACK ? BPF_F_INGRESS : 0);
	return give_back(skb, segment, dial);
}

struct backend_offer {
	struct timestamps timestamps;
	__u16 mss;
	__u8 scale;
};

/* Nonzero: the backend lacks an option that the sender was promised. */
static __always_inline int read_offer(struct __sk_buff *skb, const struct segment *segment,
				      struct backend_offer *offer)
{
	struct options *options = read_options(skb, segment);

	if (!options || read_timestamps(options, &offer->timestamps) || !options->sack_permitted ||
	    !options->window_scale)
		return -1;
	offer->mss = maximum_segment_size(options);
	offer->scale = window_scale(options);
	return 0;
}

/* The flow is the same as one that a relayed session has left. */
static __always_inline void fill_in(struct spliced *flow, const struct segment *segment,
				    const struct dial *dial, const struct backend_offer *offer, __u32 window)
{
	struct face *down = &flow->faces[0], *up = &flow->faces[1];
	__u32 header_end = dial->isn + 1 + dial->header_len, data = dial->have - dial->header_len;
	__u32 sender_window = (__u32)bpf_ntohs(dial->window) << (dial->scale & 15);

	__builtin_memset(flow, 0, sizeof(*flow));
	flow->listener = dial->listener;

	down->key = dial->down;
	down->shift = dial->up_isn + 1 - header_end;
	down->nxt = down->una = dial->our_isn + 1;
	down->ack = header_end;
	down->edge = header_end + window;
	down->first = header_end;
	down->end = (__u64)header_end + data;
	down->max_window = sender_window;
	down->said_edge = down->una + sender_window;
	down->peer_scale = dial->scale;
	down->own_scale = OWN_SCALE;
	down->has_timestamps = 1;
	down->ts_shift = dial->up_tsval - dial->tsval;
	down->tsval = milliseconds() + dial->clock + CLOCK_LEAD;
	down->device = dial->device;
	down->known = TOLD | SAID | CLOCK | SAID_CLOCK | TS_SHIFT | CUT;

	up->key = dial->up;
	up->shift = dial->our_isn - segment->seq;
	up->nxt = dial->up_isn + 1 + data;
	up->una = dial->up_isn + 1;
	up->ack = up->end = up->first = segment->seq + 1;
	up->edge = up->ack + sender_window;
	up->max_window = window;
	up->said_edge = up->una + window;
	up->peer_scale = offer->scale;
	up->own_scale = dial->scale;
	up->has_timestamps = 1;
	up->ts_shift = down->tsval - offer->timestamps.value;
	up->tsval = dial->up_tsval;
	up->device = dial->up_device;
	up->known = TOLD | SAID | CLOCK | SAID_CLOCK | TS_SHIFT | CUT;
}

static __always_inline int is_turned_known(const struct flow_key *key)
{
	struct flow_key turned = turned_key(key);

	return !!slot_of_flow(&turned);
}

/* Enters both keys of the flow. NO_ROOM, or KEY_TAKEN: another flow has one of them, or the peer is another
 * session of this host. Such a pair can't work: what is translated from loopback to loopback does not come in
 * again, so the other session would never see it. It is looked for only after both keys are entered: of two
 * that begin at once, at least one sees the other. */
static __always_inline int enter(struct spliced *flow, __u32 place)
{
	__u32 down = place << 1, up = down | 1;

	int refused = enter_key(&flow->faces[1].key, up);

	if (refused)
		return refused;
	refused = enter_key(&flow->faces[0].key, down);
	if (!refused && (flow->faces[0].device == LOOPBACK || flow->faces[1].device == LOOPBACK) &&
	    (is_turned_known(&flow->faces[0].key) || is_turned_known(&flow->faces[1].key))) {
		remove_key(&flow->faces[0].key, down);
		refused = KEY_TAKEN;
	}
	if (refused) {
		remove_key(&flow->faces[1].key, up);
		return refused;
	}
	/* Last: from now on truepeer may find it. */
	__sync_val_compare_and_swap((__u32 *)&flow->stage, SPLICE_FREE, SPLICE_SPLICED);
	return 0;
}

/* Acknowledges the header to the sender and opens the backend's window: in a copy of the packet, with the
 * link addresses of the sender's segment. */
static __always_inline int tell_sender(struct __sk_buff *skb, const struct segment *segment,
				       const struct dial *dial, const struct face *down, __u32 window)
{
	struct reply *reply =
		new_reply(&down->key.local, down->key.local_port, &down->key.remote, down->key.remote_port);
	struct ethhdr none = {};

	if (!reply)
		return -1;
	reply->tcp.seq = bpf_htonl(down->nxt);
	reply->tcp.ack_seq = bpf_htonl(down->ack);
	reply->tcp.ack = 1;
	reply->tcp.window = scaled(window, down);
	with_timestamps(reply, down->tsval, dial->tsval);
	if (write_reply(skb, segment, reply, 0))
		return -1;
	/* The priority tag (VLAN 0) belongs to the wire that the backend's segment came by. */
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return -1;
	if (down->device == LOOPBACK) {
		bpf_skb_store_bytes(skb, 0, &none, ETH_ALEN * 2, 0);
		return bpf_clone_redirect(skb, LOOPBACK, by_loopback(skb));
	}
	bpf_skb_store_bytes(skb, 0, dial->link + ETH_ALEN, ETH_ALEN, 0);
	bpf_skb_store_bytes(skb, ETH_ALEN, dial->link, ETH_ALEN, 0);
	return bpf_clone_redirect(skb, down->device, 0);
}

/* The backend's SYN-ACK becomes the ACK to it, which carries the held bytes. */
static __always_inline int tell_backend(struct __sk_buff *skb, const struct segment *segment,
					const struct dial *dial, const struct face *up,
					const struct backend_offer *offer)
{
	struct reply *reply = new_reply(&up->key.local, up->key.local_port, &up->key.remote, up->key.remote_port);

	if (!reply)
		return drop_full(FULL_FAILED);
	reply->tcp.seq = bpf_htonl(up->una);
	reply->tcp.ack_seq = bpf_htonl(up->ack);
	reply->tcp.ack = 1;
	reply->tcp.window = dial->window;
	/* The SYN's timestamp again: the sender's segments are translated from it on, and would look old
	 * behind a later one (PAWS). */
	with_timestamps(reply, dial->up_tsval, offer->timestamps.value);
	reply->payload_from = dial->header_len;
	reply->payload_len = dial->have - dial->header_len;
	reply->tcp.psh = !!reply->payload_len;
	skb->mark = dial->up_mark;
	if (write_reply(skb, segment, reply, dial))
		return drop_full(FULL_FAILED);
	return send_by(skb, up->device);
}

static __always_inline int begin(struct __sk_buff *skb, const struct segment *segment, struct dial *dial,
				 const struct backend_offer *offer)
{
	__u32 place;

	if (take_place(&place))
		return undo(skb, segment, dial, NO_PLACE);
	struct spliced *flow = bpf_map_lookup_elem(&ts_flows, &place);
	if (!flow)
		return drop_full(FULL_FAILED);
	/* The window of a SYN-ACK has no scale. */
	__u32 window = bpf_ntohs(segment->window);
	fill_in(flow, segment, dial, offer, window);
	int refused = enter(flow, place);
	if (refused)
		return undo(skb, segment, dial, refused == NO_ROOM ? NO_PLACE : TUPLE_TAKEN);
	count_full(BEGUN);
	if (tell_sender(skb, segment, dial, &flow->faces[0], window))
		count_full(FULL_FAILED);
	return tell_backend(skb, segment, dial, &flow->faces[1], offer);
}
