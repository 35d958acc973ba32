/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* TCP on its way in: from a sender to a backend on this host. Nothing is cut out of packets; sequence numbers are shifted, so that the
 * kernel takes the header for data that it already has. docs/internals/attach.md draws it.
 *
 *   SYN      shifted by K, the length that this sender's header is guessed to have
 *   bare ACK held back: accept() must not return before the client is known
 *   header   in part: delivered as old data, which the kernel acknowledges and drops
 *            whole (N bytes) with data behind it: shifted like all that follow it
 *            whole and alone: becomes the bare ACK; once more, shifted
 *            (of either the kernel makes a socket, and tcp_end makes the pending connection a flow)
 *   rest     shifted by delta = K - N: not at all, if the guess was right
 */
#include "lib/ipv6_exthdr.h"
#include "attach/in_place.h"
#include "attach/syn.h"
#include "attach/late.h"

/* The header is off. The pending connection becomes a flow when the kernel makes its socket, which it need not do at once, or ever. */
static __always_inline void establish(const struct port *port, struct pending *pending, __u32 header_len, const struct flow *flow)
{
	pending->have = header_len;
	pending->flow = *flow;
	__builtin_memset(pending->replay, 0, sizeof(pending->replay));
	pending->replay_len = 0;
	pending->stage = ESTABLISHED;
	count(port, flow->delta ? DELTA_NONZERO : DELTA_ZERO);
}

static __always_inline int end_handshake(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					 const struct pending *pending)
{
	if (!become_last_ack(skb, segment, pending))
		return go_on(skb);
	return drop(port, FAILED);
}

/* The segment ends the handshake, and comes in once more, behind itself: then it belongs to a flow. Without the copy, the sender sends all
 * of it again. */
static __always_inline int let_in(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				  const struct pending *pending)
{
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		count(port, FAILED);
	return end_handshake(skb, segment, port, pending);
}

/* The kernel may have given the handshake up: then it begins again. The reason where it can't. */
static __always_inline enum counter revive(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					   const struct pending *pending, enum socket_state state)
{
	if (state != LISTENS)
		return 0;
	enum counter refusal = why_not_again(port, pending);
	if (refusal)
		return refusal;
	if (begin_again(skb, segment, pending))
		return REFUSED_REDIRECTED;
	count(port, BEGUN_AGAIN);
	return 0;
}

/* The hooks are on a cgroup below the root: a container's. Set when the program is loaded. */
const volatile __u32 has_hooks_inside = 0;

/* No hook has seen the SYN, so none would see the connection: its listener is another container's, or this one's
 * after a restart, which made the cgroup anew. */
static __always_inline int is_beyond_hooks(const struct pending *pending)
{
	return has_hooks_inside && pending->listener != LISTENER_INSIDE;
}

/* Bytes that looked like a header's start were acknowledged, and are data: the sender will not send them again. */
static __always_inline void keep_for_replay(struct pending *pending, struct header_scratch *scratch, __u32 len)
{
	for (__u32 i = 0; i < REPLAY_MAX; i++)
		pending->replay[i] = i < len ? scratch->start[i] : 0;
	pending->replay_len = len;
}

/* No header, and none is needed: the sender is the client. */
static __always_inline int go_on_without(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					 const struct flow_key *key, struct pending *pending, int is_late)
{
	struct flow flow = { .delta = pending->guess };
	struct prefix sender = host(&key->remote);
	struct header_scratch *scratch = header_scratch();
	__u32 family = 0, replay = pending->have;

	if (is_denied(&sender, port->group))
		return refuse_for(skb, segment, port, key, pending, REFUSED_DENIED);
	if (!scratch || replay > REPLAY_MAX)
		return drop(port, FAILED);
	enum socket_state state = find_socket(skb, segment, pending->isn + 1 + pending->guess, &family);
	enum counter refusal =
		is_beyond_hooks(pending) ? REFUSED_ELSEWHERE : revive(skb, segment, port, pending, state);
	if (refusal)
		return refuse_for(skb, segment, port, key, pending, refusal);
	if (is_late) {
		flow.header = MAY_COME_LATE;
		flow.client.word[0] = pending->isn + 1;
	}
	establish(port, pending, 0, &flow);
	count(port, HEADER_ABSENT);
	if (replay > 0)
		keep_for_replay(pending, scratch, replay);
	if (replay > 0 || state == LISTENS)
		return let_in(skb, segment, port, pending);
	shift_seq(skb, segment, flow.delta);
	return go_on(skb);
}

static __always_inline int may_be_absent(const struct port *port, const struct flow_key *key)
{
	return sender_rule(&key->remote, port->group) == RULE_OPTIONAL;
}

/* A backend that speaks first must not wait longer. */
static __always_inline int is_silent(const struct segment *segment, const struct port *port, const struct pending *pending)
{
	struct terms *terms = terms_of(port);

	return terms && pending->have == 0 && offset_of(segment, pending) == 0 &&
	       bpf_ktime_get_ns() - pending->born_ns >= terms->header_wait_ns;
}

/* An ACK without data. If it follows bytes that have not arrived, the sender has written: a header may be
 * lost. */
static __always_inline int on_bare_ack(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				       const struct flow_key *key, struct pending *pending, __u32 tsval)
{
	if (is_silent(segment, port, pending) && may_be_absent(port, key) && is_intact(skb, segment) &&
	    (!pending->is_by_cookie || has_cookie(skb, segment, pending)))
		return go_on_without(skb, segment, port, key, pending, 1);
	if (tsval && tsval != pending->ts_recent)
		learn(skb, segment, pending, tsval);
	return drop(port, HELD_ACK);
}

/* Appends the `fresh` bytes at `from` to the stored start of the header. */
GLOBAL int gather(struct __sk_buff *skb, struct header_scratch *scratch, struct pending *pending, __u32 from, __u32 fresh)
{
	if (!scratch || !pending)
		return -1;
	__builtin_memcpy(scratch->start, pending->start, HEADER_START);
	__u32 have = pending->have;
	if (have >= HEADER_START)
		return 0;
	__u32 take = fresh < HEADER_START - have ? fresh : HEADER_START - have;
	__u32 len = take - 1;
	asm volatile("%0 &= 127" : "+r"(len)); /* for the verifier: 1 to 128 bytes, and never more than `fresh` holds */
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
static __always_inline int on_part(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				   const struct flow_key *key, struct pending *pending, __u32 have)
{
	__u32 family = 0;

	if (segment->flags & FIN)
		return refuse_for(skb, segment, port, key, pending, REFUSED_NO_HEADER);
	enum socket_state state = find_socket(skb, segment, 0, &family);
	if (state == LISTENS && !pending->is_by_cookie) {
		enum counter refusal = why_not_again(port, pending);
		if (refusal)
			return refuse_for(skb, segment, port, key, pending, refusal);
		/* It stays unacknowledged, so the sender sends it again, together with the rest. */
		return drop(port, EARLY_SEGMENT);
	}
	/* Behind a cookie there is nobody to acknowledge it. */
	if (state != HALF_OPEN)
		return refuse_for(skb, segment, port, key, pending, REFUSED_SPLIT_COOKIE);
	count(port, HEADER_SPLIT);
	pending->have = have;
	shift_seq(skb, segment, pending->guess - have);
	return go_on(skb);
}

static __always_inline int is_same_flow(const struct flow *one, const struct flow *other)
{
	return one->client.word[0] == other->client.word[0] && one->client.word[1] == other->client.word[1] &&
	       one->client.word[2] == other->client.word[2] && one->client.word[3] == other->client.word[3] &&
	       one->client_port == other->client_port && one->client_version == other->client_version &&
	       one->header == other->header && one->delta == other->delta;
}

/* The client that a complete header names, as its flow will show it; or the reason why it may not be shown. */
static __always_inline enum counter name_client(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
						const struct flow_key *key,
						const struct pending *pending, const struct header *header,
						enum verdict verdict, struct flow *flow, enum socket_state *state)
{
	__u32 family = 0;

	flow->delta = pending->guess - header->len;
	if (verdict == ADDRESSES) {
		flow->client = header->client;
		flow->client_port = header->client_port;
		flow->client_version = header->client_version;
		flow->header = NAMES_A_CLIENT;
		/* ::ffff:a.b.c.d means a.b.c.d, however it was written. */
		if (flow->client.word[0] == 0 && flow->client.word[1] == 0 && flow->client.word[2] == MAPPED)
			flow->client_version = 4;
	}
	enum counter refusal = validate_client(flow->client_version ? &flow->client : &key->remote, flow->client_version,
				     port->group);
	if (refusal)
		return refusal;
	*state = find_socket(skb, segment, pending->isn + 1 + pending->guess, &family);
	if (*state == NO_SOCKET || *state == OPEN)
		return REFUSED_REDIRECTED;
	if (is_beyond_hooks(pending))
		return REFUSED_ELSEWHERE;
	if (pending->listener == LISTENER_OUTSIDE) {
		flow->client_version = 0;
	} else if (flow->client_version == 6 && family == AF_INET) {
		/* Programs fail on an address of another family than their socket's. */
		struct terms *terms = terms_of(port);

		if (terms && terms->refuse_unshowable)
			return REFUSED_FAMILY;
		flow->client_version = 0;
	}
	return 0;
}

/* The server takes the sender for the client, and may ban it. `flow` still has the client's address. */
static __noinline int tell_unshown(const struct flow_key *key, const struct pending *pending, struct flow *flow)
{
	flow->client_version = 6;
	tell(key, IPPROTO_TCP, pending->listener == LISTENER_OUTSIDE ? OUTSIDE_CGROUP : CLIENT_NOT_SHOWABLE, flow);
	flow->client_version = 0;
	return 0;
}

static __always_inline void count_header(const struct port *port, const struct header *header, enum verdict verdict,
					 const struct flow *flow, const struct pending *pending)
{
	if (verdict == ADDRESSES && !flow->client_version)
		count(port, pending->listener == LISTENER_OUTSIDE ? OUTSIDE_CGROUP : CLIENT_NOT_SHOWABLE);
	else if (verdict != ADDRESSES)
		count(port, NAMED_ITSELF);
	count(port, header->is_v1 ? HEADER_V1 : HEADER_V2);
}

/* A segment that brings something behind the header ends the handshake itself, like the first data of a sender whose ACK was lost: the
 * kernel trims the header off as old data. After a cookie the kernel takes only what comes right behind the SYN; it drops what is all old;
 * and the echo of a SYN-ACK that was repeated since must go (become_last_ack). */
static __always_inline int may_end_handshake(const struct segment *segment, const struct pending *pending, __u32 behind)
{
	return pending->have == 0 && !pending->is_by_cookie && pending->tsval_first == pending->tsval_synack &&
	       (behind > 0 || segment->flags & FIN);
}

/* `behind`: so many bytes stand behind the header. */
static __always_inline int on_whole(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				    const struct flow_key *key, struct pending *pending, const struct header *header,
				    enum verdict verdict, __u32 behind)
{
	struct flow flow = {};
	enum socket_state state = NO_SOCKET;

	enum counter refusal = name_client(skb, segment, port, key, pending, header, verdict, &flow, &state);
	if (!refusal)
		refusal = revive(skb, segment, port, pending, state);
	if (refusal)
		return refuse_claim_for(skb, segment, port, key, pending, refusal, &flow);
	count_header(port, header, verdict, &flow, pending);
	if (verdict == ADDRESSES && !flow.client_version)
		tell_unshown(key, pending, &flow);
	int is_enough = state == HALF_OPEN && may_end_handshake(segment, pending, behind);
	establish(port, pending, header->len, &flow);
	if (is_enough) {
		shift_seq(skb, segment, flow.delta);
		return go_on(skb);
	}
	return let_in(skb, segment, port, pending);
}

/* Old for the kernel, too: it acknowledges it again. If it has given the handshake up, it would answer with a RST. */
static __always_inline int on_old_data(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				       const struct pending *pending)
{
	__u32 family = 0;

	if (!pending->is_by_cookie && find_socket(skb, segment, 0, &family) == LISTENS && !why_not_again(port, pending)) {
		if (!is_intact(skb, segment))
			return drop(port, REFUSED_DAMAGED);
		say_where(skb, segment, pending);
		return DROP;
	}
	shift_seq(skb, segment, pending->guess - pending->have);
	return go_on(skb);
}

/* Data, or FIN. */
static __always_inline int on_data(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				   const struct flow_key *key, struct pending *pending, __u32 tsval)
{
	__u32 known = pending->have - offset_of(segment, pending);
	int is_end = segment->flags & FIN;
	if ((__s32)known < 0)
		return drop(port, EARLY_SEGMENT);
	if (known > segment->payload_len || (known == segment->payload_len && !is_end))
		return on_old_data(skb, segment, port, pending);
	if (pending->is_by_cookie && (offset_of(segment, pending) != 0 || !has_cookie(skb, segment, pending)))
		return drop(port, NOT_TAKEN);
	if (!learn(skb, segment, pending, tsval))
		return drop(port, REFUSED_DAMAGED);
	__u32 fresh = segment->payload_len - known;
	if (fresh == 0 && pending->have == 0 && may_be_absent(port, key))
		return go_on_without(skb, segment, port, key, pending, 0);
	if (fresh == 0)
		return refuse_for(skb, segment, port, key, pending, REFUSED_NO_HEADER);
	struct header_scratch *scratch = header_scratch();
	struct terms *terms = terms_of(port);
	if (!scratch || !terms || gather(skb, scratch, pending, segment->payload_at + known, fresh))
		return drop(port, FAILED);

	__u32 have = pending->have + fresh;
	enum verdict verdict = read_header(scratch, have < HEADER_START ? have : HEADER_START, STREAM);
	if (verdict == NOT_PROXY && may_be_absent(port, key))
		return go_on_without(skb, segment, port, key, pending, 0);
	if (verdict == NOT_PROXY)
		return refuse_for(skb, segment, port, key, pending, REFUSED_NO_HEADER);
	if (verdict == MALFORMED)
		return refuse_for(skb, segment, port, key, pending, REFUSED_MALFORMED);
	if (scratch->header.len > terms->header_max)
		return refuse_for(skb, segment, port, key, pending, REFUSED_TOO_LONG);
	if (verdict == NEED_MORE || have < scratch->header.len)
		return on_part(skb, segment, port, key, pending, have);
	return on_whole(skb, segment, port, key, pending, &scratch->header, verdict, have - scratch->header.len);
}

/* The header came again, perhaps because the kernel never got the validated segment (a firewall may drop it): the
 * new one counts. The entry is replaced as a whole because tcp_end may be reading it. */
static __noinline int validate_again(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				  const struct flow_key *key, struct pending *pending)
{
	struct header_scratch *scratch = header_scratch();
	__u32 len = segment->payload_len < HEADER_START ? segment->payload_len : HEADER_START;
	__u32 last = len - 1;
	struct flow flow = {};
	enum socket_state state = NO_SOCKET;

	asm volatile("%0 &= 127" : "+r"(last));
	if (!scratch || last >= HEADER_START || !is_intact(skb, segment))
		return -1;
	if (bpf_skb_load_bytes(skb, segment->payload_at, scratch->start, last + 1))
		return -1;
	enum verdict verdict = read_header(scratch, len, STREAM);
	if ((verdict != ADDRESSES && verdict != ITSELF) || scratch->header.len > segment->payload_len)
		return -1;
	if (name_client(skb, segment, port, key, pending, &scratch->header, verdict, &flow, &state))
		return -1;
	if (is_same_flow(&flow, &pending->flow))
		return 0;
	scratch->pending = *pending;
	scratch->pending.flow = flow;
	scratch->pending.have = scratch->header.len;
	scratch->pending.is_busy = 0;
	return bpf_map_update_elem(&tp_pending, key, &scratch->pending, BPF_EXIST);
}

/* For a segment that must make the connection itself: a listener with TCP_DEFER_ACCEPT drops the last ACK that we have made. A request socket
 * refuses the echo of a later packet than its SYN-ACK (TSEcrRejected), such as the acknowledgement of a part of the header. It ignores an echo of
 * zero. */
static __noinline int blank_late_echo(struct __sk_buff *skb, const struct segment *segment, const struct pending *pending)
{
	struct timestamps timestamps = {};
	struct options *options = read_options(skb, segment);

	if (!pending->has_timestamps || pending->is_by_cookie || read_timestamps(options, &timestamps))
		return 0;
	__u32 at = options->timestamps + TIMESTAMP_ECHO;
	if (timestamps.echo - pending->tsval_first > pending->tsval_synack - pending->tsval_first && at <= OPTIONS_END - 4)
		set_word(skb, segment, sizeof(struct tcphdr) - OPTIONS_AT + at, timestamps.echo, 0);
	return 0;
}

/* The header is off, but the socket was not there when we looked: the accept queue was full. The kernel has then dropped the last ACK,
 * and takes any later segment in its place as soon as there is room. But if it keeps no request socket (a cookie, or it has given the handshake
 * up), it takes only a segment that comes right after the SYN; and what is replayed comes only with our own ACK. */
static __always_inline int on_established(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				       const struct flow_key *key, struct pending *pending)
{
	__u32 family = 0;

	if (pending->flow.header == MAY_COME_LATE) {
		enum counter reason = validate_late(skb, segment, &pending->flow, 0);
		if (reason == REFUSED_AFTER_WAIT)
			return refuse_for(skb, segment, port, key, pending, reason);
		if (reason)
			return drop(port, reason);
	}
	enum socket_state state = find_socket(skb, segment, pending->isn + 1 + pending->guess, &family);
	int is_given_up = state == LISTENS && !why_not_again(port, pending);
	if ((pending->is_by_cookie && state == ANSWERS_COOKIE) || is_given_up || pending->replay_len > 0) {
		if (!is_intact(skb, segment))
			return drop(port, REFUSED_DAMAGED);
		if (is_given_up && begin_again(skb, segment, pending))
			return drop(port, FAILED);
		return end_handshake(skb, segment, port, pending);
	}
	if (segment->payload_len > 0 && offset_of(segment, pending) == 0 && pending->have > 0) {
		validate_again(skb, segment, port, key, pending);
		pending = bpf_map_lookup_elem(&tp_pending, key);
		if (!pending || pending->stage != ESTABLISHED)
			return DROP; /* its socket has just been made; the sender sends this again */
	}
	if (state == HALF_OPEN)
		blank_late_echo(skb, segment, pending);
	shift_seq(skb, segment, pending->flow.delta);
	return go_on(skb);
}

/* A request socket accepts any RST in its window of 65,536 numbers. An open socket accepts only the number
 * that it expects (RFC 5961), and a plain port would have an open socket by now. So a RST counts here only if
 * it has one of the two numbers that the sender knows. */
static __always_inline int on_rst(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				  const struct flow_key *key, const struct pending *pending)
{
	__u32 offset = offset_of(segment, pending);

	if (offset != 0 && offset != pending->have)
		return drop(port, NOT_TAKEN);
	if (segment->flags & SYN || (segment->flags & ACK && !is_our_number(segment, pending)))
		return drop(port, NOT_TAKEN);
	if (!is_intact(skb, segment))
		return drop(port, REFUSED_DAMAGED);
	shift_seq(skb, segment, pending->guess - offset);
	bpf_map_delete_elem(&tp_pending, key);
	return go_on(skb);
}

static __always_inline int on_pending(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				     const struct flow_key *key, struct pending *pending)
{
	__u32 tsval = 0;

	if (is_spoofed(skb, segment, pending))
		return drop(port, NOT_TAKEN);
	if (segment->flags & RST)
		return on_rst(skb, segment, port, key, pending);
	/* SYN|ACK: with a byte of data the kernel would create a socket from it, which accept() returns. No sender
	 * has a reason to send it. */
	if (segment->flags & SYN)
		return drop(port, NOT_TAKEN);
	if (pending->stage == NO_SLOT)
		return refuse_for(skb, segment, port, key, pending, REFUSED_FULL);
	if (!is_acceptable(skb, segment, pending, &tsval))
		return drop(port, NOT_TAKEN);
	if (pending->stage == ESTABLISHED)
		return on_established(skb, segment, port, key, pending);
	/* Somebody else's SYN may have come first: this one's place is known by the cookie that it answers. */
	if (!pending->is_proved && (!pending->is_by_cookie || proves_cookie(skb, segment, pending)))
		pending->is_proved = 1;
	if (segment->payload_len == 0 && !(segment->flags & FIN))
		return on_bare_ack(skb, segment, port, key, pending, tsval);
	return on_data(skb, segment, port, key, pending, tsval);
}

/* Two processors may handle copies of a segment at the same time. Both would accept the header, the second one
 * after the socket was created, and refuse the connection; or one would write header bytes over the flow that
 * the other has just stored. So the second is dropped; the sender repeats it if it is needed. */
static __always_inline int on_pending_alone(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					   const struct flow_key *key, struct pending *pending)
{
	if (__sync_lock_test_and_set(&pending->is_busy, 1))
		return drop(port, NOT_TAKEN);
	int fate = on_pending(skb, segment, port, key, pending);
	pending->is_busy = 0;
	return fate;
}

/* An unknown connection. Those that were open before the attachment continue. Half-open ones must not become
 * open. */
static __always_inline int on_stranger(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				       const struct flow_key *key)
{
	__u32 family = 0;

	if (segment->flags & RST || port->state == DRAINING || sender_rule(&key->remote, port->group) == 0)
		return PASS;
	switch (find_socket(skb, segment, segment->seq, &family)) {
	case HALF_OPEN:
	case ANSWERS_COOKIE:
		if (!(segment->flags & ACK))
			return drop(port, NOT_TAKEN);
		if (!is_intact(skb, segment))
			return drop(port, REFUSED_DAMAGED);
		count(port, REFUSED_STRAY);
		tell(key, IPPROTO_TCP, REFUSED_STRAY, 0);
		return refuse(skb, segment, segment->seq, 0);
	case OPEN:
		return PASS;
	default:
		return go_on(skb); /* the kernel answers it with a RST */
	}
}

/* A flow whose socket's end was missed: this SYN starts another connection, with its own header. */
static __always_inline int is_left_behind(struct __sk_buff *skb, const struct segment *segment, const struct flow_key *key)
{
	__u32 family = 0;
	enum socket_state state = find_socket(skb, segment, 0, &family);

	if (state != NO_SOCKET && state != LISTENS)
		return 0;
	bpf_map_delete_elem(&tp_flows, key);
	return 1;
}

static __always_inline int has_listener(struct __sk_buff *skb, const struct hidden *hidden)
{
	struct segment segment = {
		.ip = hidden->ip,
		.source_port = hidden->source_port,
		.destination_port = hidden->destination_port,
	};
	__u32 family = 0;

	return find_socket(skb, &segment, 0, &family) != NO_SOCKET;
}

/* Not inlined: its stack would be added to that of all other paths (512 bytes along the deepest one). */
static __noinline int on_unreadable(struct __sk_buff *skb)
{
	struct hidden hidden = {};

	enum finding found = find_hidden(skb, IPPROTO_TCP, &hidden);
	if (found == NOTHING_HIDDEN || !sender_rules(&hidden.ip.source) || !is_for_this_host(skb, &hidden.ip, IPPROTO_TCP))
		return PASS;
	if (found == TOO_LONG_TO_SAY)
		return refuse_too_long();
	struct port *port = bpf_map_lookup_elem(&tp_ports, &hidden.destination_port);
	if (!port || !sender_rule(&hidden.ip.source, port->group) || !has_listener(skb, &hidden))
		return PASS;
	struct flow_key key = {
		.remote = hidden.ip.source,
		.remote_port = hidden.source_port,
		.local_port = hidden.destination_port,
	};
	count(port, REFUSED_FRAGMENT);
	tell(&key, IPPROTO_TCP, REFUSED_FRAGMENT, 0);
	return DROP;
}

static __always_inline int on_flow(struct __sk_buff *skb, const struct segment *segment, const struct flow_key *key,
				   struct flow *flow)
{
	struct port *port = 0;

	if (flow->header == MAY_COME_LATE)
		port = bpf_map_lookup_elem(&tp_ports, &segment->destination_port);
	if (port) {
		enum counter reason = validate_late(skb, segment, flow, 1);
		if (reason == REFUSED_AFTER_WAIT)
			return end_late(skb, segment, port, key, flow);
		if (reason)
			return drop(port, reason);
	}
	if (!flow->delta)
		return PASS;
	shift_seq(skb, segment, flow->delta);
	return go_on(skb);
}

SEC("classifier")
int tcp_ingress(struct __sk_buff *skb)
{
	struct segment segment = {};
	if (skb->pkt_type != 0 /* PACKET_HOST: TCP takes nothing else (tcp_v4_rcv) */ || is_elsewhere(skb))
		return PASS;
	if (read_segment(skb, &segment))
		return on_unreadable(skb);
	if (is_other_port(segment.destination_port))
		return PASS;
	/* Validated on the device below (a port of a bridge): its numbers are the kernel's by now. */
	if (is_validated(skb))
		return PASS;
	struct flow_key key = {
		.remote = segment.ip.source,
		.local = segment.ip.destination,
		.remote_port = segment.source_port,
		.local_port = segment.destination_port,
	};
	int is_syn = (segment.flags & (SYN | ACK)) == SYN;
	struct flow *flow = bpf_map_lookup_elem(&tp_flows, &key);
	if (flow && !(is_syn && is_left_behind(skb, &segment, &key)))
		return on_flow(skb, &segment, &key, flow);
	struct port *port = bpf_map_lookup_elem(&tp_ports, &segment.destination_port);
	if (!port)
		return PASS;
	if (is_syn)
		return on_syn(skb, &segment, port, &key);
	struct pending *pending = bpf_map_lookup_elem(&tp_pending, &key);
	if (pending && pending->is_answered)
		return on_pending_alone(skb, &segment, port, &key, pending);
	/* The pending connection may have become a flow since the lookup, and the flow may have ended. */
	flow = bpf_map_lookup_elem(&tp_flows, &key);
	if (!flow)
		flow = bpf_map_lookup_elem(&tp_ended, &key);
	if (flow)
		return on_flow(skb, &segment, &key, flow);
	return on_stranger(skb, &segment, port, &key);
}

char _license[] SEC("license") = "Dual MIT/GPL";
