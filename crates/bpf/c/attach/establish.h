/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The end of a handshake in tcp_ingress: the header is off, or there is none and none is needed. The kernel
 * gets the ACK that it waits for, and makes the socket. */
#pragma once
#include "attach/bans.h"
#include "attach/drop.h"
#include "attach/restart.h"
#include "attach/proof.h"

/* The header is off, if there is one. The pending connection becomes a flow when the kernel makes its socket,
 * which it need not do at once, or ever. */
static __always_inline void establish(const struct port *port, struct pending *pending,
				      const struct header *header, const struct flow *flow)
{
	pending->have = header ? header->len : 0;
	pending->destination = header ? header->destination : (struct endpoint){};
	pending->flow = *flow;
	__builtin_memset(pending->replay, 0, sizeof(pending->replay));
	pending->replay_len = 0;
	pending->stage = ESTABLISHED;
	count(port, flow->delta ? DELTA_NONZERO : DELTA_ZERO);
}

static __always_inline int end_handshake(struct __sk_buff *skb, struct incoming *in)
{
	if (!become_last_ack(skb, &in->segment, in->pending))
		return go_on(skb);
	return drop(in->port, FAILED);
}

/* The segment ends the handshake, and comes in once more, behind itself: then it belongs to a flow. Without
 * the copy, the sender sends all of it again. */
static __always_inline int let_in(struct __sk_buff *skb, struct incoming *in)
{
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		count(in->port, FAILED);
	return end_handshake(skb, in);
}

/* The kernel may have given the handshake up: then it begins again. The reason where it can't. */
static __always_inline enum counter revive(struct __sk_buff *skb, struct incoming *in)
{
	if (in->state != LISTENS)
		return 0;
	enum counter refusal = why_not_again(in->port, in->pending);
	if (refusal)
		return refusal;
	if (begin_again(skb, &in->segment, in->pending))
		return REFUSED_REDIRECTED;
	count(in->port, BEGUN_AGAIN);
	return 0;
}

/* The hooks are on a cgroup below the root: a container's. Set when the program is loaded. */
const volatile __u32 has_hooks_inside = 0;

/* The reason if no hook has seen the SYN, so that none would see the connection. With a request socket, its
 * listener is another container's, or this one's after a restart, which made the cgroup anew. Without one, the
 * port's own listener has no part in it: another one got the SYN. */
static __always_inline enum counter beyond_hooks(const struct incoming *in)
{
	if (!has_hooks_inside || in->pending->listener == LISTENER_INSIDE)
		return 0;
	return in->state == LISTENS ? REFUSED_REDIRECTED : REFUSED_ELSEWHERE;
}

/* Bytes that looked like a header's start were acknowledged, and are data: the sender will not send them
 * again. */
static __always_inline void keep_for_replay(struct pending *pending, struct header_scratch *scratch,
					    __u32 len)
{
	for (__u32 i = 0; i < REPLAY_MAX; i++)
		pending->replay[i] = i < len ? scratch->start[i] : 0;
	pending->replay_len = len;
}

/* No header, and none is needed: the sender is the client. */
static __always_inline int go_on_without(struct __sk_buff *skb, struct incoming *in, int is_late)
{
	struct flow flow = { .delta = in->pending->guess };
	struct prefix sender = host(&in->key.remote);
	struct header_scratch *scratch = header_scratch();
	__u32 family = 0, replay = in->pending->have;

	if (is_denied(&sender, in->port->group))
		return refuse_for(skb, in, REFUSED_DENIED);
	if (is_banned(&in->key.remote, in->key.local_port))
		return refuse_for(skb, in, REFUSED_BANNED);
	if (!scratch || replay > REPLAY_MAX)
		return drop(in->port, FAILED);
	in->state = find_socket(skb, &in->segment, in->pending->isn + 1 + in->pending->guess, &family);
	enum counter refusal = beyond_hooks(in);
	if (!refusal)
		refusal = revive(skb, in);
	if (refusal)
		return refuse_for(skb, in, refusal);
	if (is_late) {
		flow.header = MAY_COME_LATE;
		flow.client.word[0] = in->pending->isn + 1;
	}
	establish(in->port, in->pending, 0 /* header */, &flow);
	count(in->port, HEADER_ABSENT);
	if (replay > 0)
		keep_for_replay(in->pending, scratch, replay);
	if (replay > 0 || in->state == LISTENS)
		return let_in(skb, in);
	shift_seq(skb, &in->segment, flow.delta);
	return go_on(skb);
}

/* Whether the header of a segment, as far as it has come, lacks the secret that its sender must send. */
static __always_inline int lacks_proof(struct __sk_buff *skb, struct incoming *in,
				       struct header_scratch *scratch, __u32 have)
{
	set_sender(scratch, &in->key.remote, in->port->group);
	scratch->from = offset_of(&in->segment, in->pending);
	scratch->packet_at = in->segment.payload_at;
	return lacks_secret(skb, have);
}

/* The client that a complete header names, as its flow will show it; or the reason why it may not be
 * shown. The header keeps its destination where that is to be shown, too. */
static __always_inline enum counter name_client(struct __sk_buff *skb, struct incoming *in,
						struct header *header, enum verdict verdict,
						struct flow *flow)
{
	struct terms *terms = terms_of(in->port);
	__u32 family = 0;

	flow->delta = in->pending->guess - header->len;
	if (verdict == ADDRESSES) {
		flow->client = header->client.address;
		flow->client_port = header->client.port;
		flow->client_version = header->client_version;
		flow->header = NAMES_A_CLIENT;
		/* ::ffff:a.b.c.d means a.b.c.d, however it was written. */
		if (flow->client.word[0] == 0 && flow->client.word[1] == 0 && flow->client.word[2] == MAPPED)
			flow->client_version = 4;
	}
	enum counter refusal = validate_client(flow->client_version ? &flow->client : &in->key.remote,
					       flow->client_version, in->port->group);
	if (refusal)
		return refusal;
	/* A sender that names itself is not banned: a load balancer that gets no answer cuts off everybody. */
	if (flow->client_version && !is_same_address(&flow->client, &in->key.remote) &&
	    is_banned(&flow->client, in->key.local_port))
		return REFUSED_BANNED;
	in->state = find_socket(skb, &in->segment, in->pending->isn + 1 + in->pending->guess, &family);
	if (in->state == NO_SOCKET || in->state == OPEN)
		return REFUSED_REDIRECTED;
	refusal = beyond_hooks(in);
	if (refusal)
		return refusal;
	if (in->pending->listener == LISTENER_OUTSIDE) {
		flow->client_version = 0;
	} else if (flow->client_version == 6 && family == AF_INET) {
		/* Programs fail on an address of another family than their socket's. */
		if (terms && terms->refuse_unshowable)
			return REFUSED_FAMILY;
		flow->client_version = 0;
	}
	if (!flow->client_version || !terms || !terms->shows_destination)
		header->destination = (struct endpoint){};
	return 0;
}

/* The server takes the sender for the client, and may ban it. `flow` still has the client's address. */
static __noinline int tell_unshown(const struct flow_key *key, const struct pending *pending,
				   struct flow *flow)
{
	flow->client_version = 6;
	tell(key, IPPROTO_TCP, pending->listener == LISTENER_OUTSIDE ? OUTSIDE_CGROUP : CLIENT_NOT_SHOWABLE, flow);
	flow->client_version = 0;
	return 0;
}

static __always_inline void count_header(const struct port *port, const struct header *header,
					 enum verdict verdict, const struct flow *flow,
					 const struct pending *pending)
{
	if (verdict == ADDRESSES && !flow->client_version)
		count(port, pending->listener == LISTENER_OUTSIDE ? OUTSIDE_CGROUP : CLIENT_NOT_SHOWABLE);
	else if (verdict != ADDRESSES)
		count(port, NAMED_ITSELF);
	count(port, header->is_v1 ? HEADER_V1 : HEADER_V2);
}

/* A segment that brings something behind the header ends the handshake itself, like the first data of a
 * sender whose ACK was lost: the kernel trims the header off as old data. After a cookie the kernel takes
 * only what comes right behind the SYN; it drops what is all old; and the echo of a SYN-ACK that was repeated
 * since must go (become_last_ack). */
static __always_inline int may_end_handshake(const struct segment *segment, const struct pending *pending,
					     __u32 behind)
{
	return pending->have == 0 && !pending->is_by_cookie && pending->tsval_first == pending->tsval_synack &&
	       (behind > 0 || segment->flags & FIN);
}

/* `behind`: bytes after the header. */
static __always_inline int on_whole(struct __sk_buff *skb, struct incoming *in, struct header *header,
				    enum verdict verdict, __u32 behind)
{
	struct flow flow = {};
	enum counter refusal = name_client(skb, in, header, verdict, &flow);
	if (!refusal)
		refusal = revive(skb, in);
	if (refusal)
		return refuse_claim_for(skb, in, refusal, &flow);
	count_header(in->port, header, verdict, &flow, in->pending);
	if (verdict == ADDRESSES && !flow.client_version)
		tell_unshown(&in->key, in->pending, &flow);
	int is_enough = in->state == HALF_OPEN && may_end_handshake(&in->segment, in->pending, behind);
	establish(in->port, in->pending, header, &flow);
	if (is_enough) {
		shift_seq(skb, &in->segment, flow.delta);
		return go_on(skb);
	}
	return let_in(skb, in);
}
