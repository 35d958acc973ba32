/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Sessions that the kernel makes by itself: the sender's handshake, its header, the backend's handshake. It
 * runs behind splice_in, which translates the segments of sessions that have begun.
 *
 *   sender                 full_in                                                      backend
 *   SYN ──────────────────▶ nothing is remembered
 *     ◀────────── SYN-ACK  a cookie; a window of HOLD bytes
 *   ACK ──────────────────▶ dropped
 *   header, bytes ────────▶ validated, held; becomes ─────────────────────────── SYN ─────▶ from the client
 *     ◀──────────── ACK ── a copy: the header has come ◀────────────────── SYN-ACK ───
 *                           the SYN-ACK becomes its answer, with the held bytes ── ACK ───▶
 *   everything else: splice_in
 */
#include "offload/full_begin.h"

/* How long facts about a backend are valid. After that, truepeer's next connection to the backend renews
 * them. */
#define KNOWN_FOR_NS 60000000000LL

static __always_inline struct full_backend *known_backend(const struct full_listener *listener, __u64 now)
{
	struct full_backend *backend = backend_at(&listener->backend, listener->backend_port);

	if (!backend || !backend->learnt_ns || (__s64)(now - backend->learnt_ns) > KNOWN_FOR_NS)
		return 0;
	return backend;
}

#define LOOKS_WITHIN_NS 2000000000LL

static __always_inline int is_truepeer_there(__u64 now)
{
	__u64 *looked = ONLY_ENTRY(tf_looked);

	return looked && (__s64)(now - *looked) < LOOKS_WITHIN_NS;
}

/* The listener ended so long ago that all its cookies have expired. */
static __always_inline int is_over(const struct full_listener *listener)
{
	return listener->left_s &&
	       (__u32)(bpf_ktime_get_ns() / 1000000000ULL) - listener->left_s > COOKIE_LIFE_MS / 1000;
}

static __always_inline __u32 mss_by_mtu(struct __sk_buff *skb, __u8 version)
{
	__u32 mtu = 0;

	if (bpf_check_mtu(skb, 0, &mtu, 0, 0) || mtu < 576 || mtu > 65535 + 40)
		return 0;
	return mtu - (version == 4 ? 40 : 60);
}

/* Where this host forwards, the route says by which device the kernel would answer this sender. Elsewhere the
 * look-up fails, and full_out learns the device from the kernel's own SYN-ACK. 0: another device than the one
 * that the SYN came by, or not known. */
GLOBAL __u32 learn_sender_by_route(struct __sk_buff *skb, const struct ip *ip)
{
	struct bpf_fib_lookup route = { .ifindex = skb->ifindex, .l4_protocol = IPPROTO_TCP };
	struct full_sender sender = { .device = skb->ifindex };

	if (!ip || !(sender.own_mss = mss_by_mtu(skb, ip->version)))
		return 0;
	set_ends(&route, ip->version, &ip->destination, &ip->source);
	long fate = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	if ((fate != BPF_FIB_LKUP_RET_SUCCESS && fate != BPF_FIB_LKUP_RET_NO_NEIGH) || route.ifindex != skb->ifindex)
		return 0;
	return bpf_map_update_elem(&tf_senders, &ip->source, &sender, BPF_ANY) ? 0 : sender.own_mss;
}

/* The longest segment that goes to the sender of a SYN. 0: the device of the route to the sender is not
 * known, or the SYN came by another one and may be forged. Loopback needs no such check: only this host sends
 * there. */
static __always_inline __u32 own_mss_towards(struct __sk_buff *skb, const struct segment *segment)
{
	if (skb->ifindex == LOOPBACK)
		return mss_by_mtu(skb, segment->ip.version);
	struct full_sender *sender = bpf_map_lookup_elem(&tf_senders, &segment->ip.source);
	if (!sender)
		return learn_sender_by_route(skb, &segment->ip);
	return sender->device == skb->ifindex ? sender->own_mss : 0;
}

/* A wire must not speak for loopback, nor reach a listener there. The kernel drops such a packet as a
 * martian, but only behind this program. It refuses to route an answer, too; don't depend on that. */
static __always_inline int is_martian(struct __sk_buff *skb, const struct ip *ip)
{
	return skb->ifindex != LOOPBACK && (is_loopback(&ip->source) || is_loopback(&ip->destination));
}

/* A SYN that is not quite usual passes: the kernel makes the connection, and truepeer relays it. */
static __always_inline int on_syn(struct __sk_buff *skb, const struct segment *segment,
				  const struct full_listener *listener, const struct flow_key *key)
{
	__u64 now = bpf_ktime_get_ns();

	/* A SYN may offer ECN; the answer does not. */
	if ((segment->flags & ~(ECE | CWR)) != SYN || segment->payload_len || !is_plain(segment))
		return PASS;
	if (listener->left_s || !is_truepeer_there(now) || is_martian(skb, &segment->ip))
		return PASS;
	/* Our own SYN: the backend of a dial is this listener. The answer would find no socket, because the
	 * dial has none. */
	struct flow_key turned = turned_key(key);
	if (skb->ifindex == LOOPBACK && slot_of_dial(&turned))
		return PASS;
	if (sender_rule(&key->remote, listener->group) != RULE_REQUIRE)
		return pass_full(OTHER_RULE);
	struct full_backend *backend = known_backend(listener, now);
	if (!backend)
		return pass_full(BACKEND_UNKNOWN);
	if (!has_place())
		return pass_full(NO_PLACE);
	__u32 own_mss = own_mss_towards(skb, segment);
	if (!own_mss)
		return pass_full(SENDER_UNKNOWN);
	struct timestamps timestamps;
	struct options *options = read_options(skb, segment);
	if (!options || read_timestamps(options, &timestamps) || !options->sack_permitted || !options->window_scale)
		return pass_full(OTHER_OPTIONS);
	if (options->signature || options->mptcp || options->fastopen)
		return pass_full(OTHER_OPTIONS);
	__u16 mss = maximum_segment_size(options);
	struct agreed_on agreed = { skb->ifindex, options_of(window_scale(options), mss < own_mss ? mss : own_mss) };
	/* If the listener has an address, that is this host's, and there is nothing to ask. */
	if ((listener->is_any && !is_for_this_host(skb, &segment->ip, IPPROTO_TCP)) ||
	    socket_there(skb, segment) != LISTENER_THERE || !is_intact(skb, segment))
		return PASS;
	struct reply *reply = new_reply(&key->local, key->local_port, &key->remote, key->remote_port);
	if (!reply)
		return drop_full(FULL_FAILED);
	reply->tcp.seq = bpf_htonl(cookie_of(key, &agreed, segment->seq, now));
	reply->tcp.ack_seq = bpf_htonl(segment->seq + 1);
	reply->tcp.syn = reply->tcp.ack = 1;
	reply->tcp.window = bpf_htons(HOLD);
	__u32 clock = clock_with_options(clock_towards(&key->local, &key->remote, now), agreed.options);
	with_syn_options(reply, backend->mss < backend->own_mss ? backend->mss : backend->own_mss, OWN_SCALE,
			 clock, timestamps.value);
	if (write_reply(skb, segment, reply, 0))
		return drop_full(FULL_FAILED);
	count_full(SYN_ANSWERED);
	return send_back(skb);
}

/* The sender's first bytes behind our SYN-ACK. */
static __always_inline int on_first(struct __sk_buff *skb, const struct segment *segment,
				    struct opening *opening)
{
	const struct full_listener *listener = opening->listener;
	const struct flow_key *key = opening->key;
	struct agreed_on agreed = { skb->ifindex, opening->options };
	struct header_scratch *scratch = header_scratch();
	__u64 now = opening->now = bpf_ktime_get_ns();
	opening->clock = clock_towards(&key->local, &key->remote, 0);
	__u32 clock = (__u32)(now / 1000000) + opening->clock;

	/* The sender was silent until its cookie expired. Without a reset it would repeat its header for a
	 * quarter of an hour. */
	if (is_echo_too_old(clock, opening->timestamps->echo)) {
		if (!is_plain(segment) || !is_intact(skb, segment) || become_reset(skb, segment))
			return drop_full(NOT_OURS);
		return send_back(skb);
	}
	/* The cookie covers the device: this segment came by the one that on_syn() checked. */
	if (!is_our_cookie(key, &agreed, segment->ack, segment->seq - 1, now) ||
	    !is_echo_of_ours(clock, opening->timestamps->echo))
		return drop_full(TOO_EARLY);
	if (!scratch || !is_intact(skb, segment))
		return drop_full(NOT_OURS);
	if ((listener->left_s && !listener->is_draining) || !is_truepeer_there(now))
		return hand_over(skb, segment, opening);
	if (segment->flags & FIN || segment->payload_len > HOLD || !is_plain(segment) ||
	    sender_rule(&key->remote, listener->group) != RULE_REQUIRE || read_start(skb, segment, scratch) ||
	    !is_clear(scratch, segment, listener)) {
		count_full(NOT_CLEAR);
		return hand_over(skb, segment, opening);
	}
	return dial_backend(skb, segment, opening, &scratch->header);
}

static __always_inline int on_downstream(struct __sk_buff *skb, const struct segment *segment,
					 const struct full_listener *listener)
{
	struct flow_key key = key_in(segment);
	struct timestamps timestamps = {};
	struct opening opening = { .listener = listener, .key = &key, .timestamps = &timestamps };

	if (segment->flags & SYN)
		return on_syn(skb, segment, listener, &key);
	struct dial *dial = 0;
	if (!(segment->flags & ACK) || !is_of_our_handshake(&key, segment->ack))
		return PASS;
	/* A forwarded connection to the same port number, whose acknowledgement looks like a cookie by chance. */
	if (listener->is_any && !is_for_this_host(skb, &segment->ip, IPPROTO_TCP))
		return PASS;
	int has_timestamps = !read_only_timestamps(skb, segment, &timestamps) ||
			     !read_timestamps(read_options(skb, segment), &timestamps);
	opening.options = timestamps.echo & OPTION_MASK;
	enum found_dial found = find_dial(&key, 0, &dial);
	if (found == IS_BUSY)
		return drop_full(TOO_EARLY);
	if (found == FOUND && dial) {
		int fate = has_timestamps ? on_dialling(skb, segment, dial, &opening) : drop_full(NOT_OURS);
		release_lock(dial);
		return fate;
	}
	/* A socket has this connection already, for example after hand_over(). */
	if (socket_there(skb, segment) == OTHER_THERE)
		return PASS;
	/* The ACK that ends the handshake says nothing that the header does not say. */
	if (!segment->payload_len && !(segment->flags & FIN))
		return DROP;
	if (!has_timestamps)
		return drop_full(NOT_OURS);
	/* The session has begun since splice_in looked for it. Drop the segment: when it comes again, it is
	 * translated. The keys of a dial are removed only after those of its flow are entered, so one of them
	 * is found. */
	if (slot_of_flow(&key))
		return drop_full(TOO_EARLY);
	return on_first(skb, segment, &opening);
}

/* Learns from a backend's answer to the kernel's own SYN. */
static __always_inline int learn_backend(struct __sk_buff *skb, const struct segment *segment)
{
	struct full_backend *backend = backend_at(&segment->ip.source, segment->source_port);
	struct backend_offer offer = {};

	if (!backend || segment->flags != (SYN | ACK) || segment->ack != backend->asked_isn + 1 ||
	    skb->ifindex != backend->asked_by || segment->destination_port != backend->asked_port ||
	    !is_same_address(&segment->ip.destination, &backend->asked_as) || !is_intact(skb, segment))
		return PASS;
	if (read_offer(skb, segment, &offer)) {
		backend->learnt_ns = 0;
		return PASS;
	}
	backend->device = backend->asked_by;
	backend->mark = backend->asked_mark;
	backend->own_mss = backend->asked_mss;
	backend->mss = offer.mss;
	backend->learnt_ns = bpf_ktime_get_ns();
	count_full(LEARNT_BACKEND);
	return PASS;
}

/* Writes `learnt_ns` at most once a second: other CPUs read it for each SYN. */
static __always_inline void learn_again(struct full_backend *backend, int is_good)
{
	__u64 now = bpf_ktime_get_ns();

	if (!is_good)
		backend->learnt_ns = 0;
	else if ((__s64)(now - backend->learnt_ns) > KNOWN_FOR_NS / 60)
		backend->learnt_ns = now;
}

/* The backend's answer to the SYN of a dial, whose lock the caller holds. */
static __always_inline int on_answer(struct __sk_buff *skb, const struct segment *segment, struct dial *dial)
{
	struct full_backend *backend = backend_at(&dial->up.remote, dial->up.remote_port);
	struct backend_offer offer = {};

	/* This segment answers another SYN than the dial's: the kernel validates it. */
	if (segment->ack != dial->up_isn + 1 || skb->ifindex != dial->up_device)
		return PASS;
	if (!is_intact(skb, segment) || !is_plain(segment) || dial->state != DIALLING)
		return drop_full(NOT_OURS);
	if (segment->flags & RST) {
		if (backend)
			backend->learnt_ns = 0;
		count_full(BACKEND_SAID_NO);
		return give_back(skb, segment, dial);
	}
	int differs = read_offer(skb, segment, &offer);
	if (backend)
		learn_again(backend, !differs);
	int fate = differs ? undo(skb, segment, dial, BACKEND_DIFFERS) : begin(skb, segment, dial, &offer);
	if (dial->state == DIALLING)
		remove_dial(dial);
	return fate;
}

static __always_inline int on_upstream(struct __sk_buff *skb, const struct segment *segment)
{
	struct flow_key up = key_in(segment);
	struct dial *dial = 0;
	enum found_dial found = find_dial(&up, 1, &dial);

	if (found == NONE_FOUND)
		return learn_backend(skb, segment);
	/* Drop a reset, too: the SYN is repeated, and so is the answer to it. */
	if (found == IS_BUSY || !dial)
		return drop_full(TOO_EARLY);
	int fate = on_answer(skb, segment, dial);
	release_lock(dial);
	return fate;
}

/* Its key leads to a dial's sender, not to a backend. */
static __always_inline int is_of_dials_sender(const struct segment *segment)
{
	struct flow_key key = key_in(segment);
	__u32 slot = slot_of_dial(&key);

	return slot && !(slot & 1);
}

/* A sender's reset ends its dial only with a number that the sender may use (RFC 5961, 3.2): the one that was
 * acknowledged to it, or the one behind its last byte. If a reset with another one is the sender's all the
 * same, it resets the session that begins. */
static __always_inline int on_senders_reset(struct __sk_buff *skb, const struct segment *segment)
{
	struct flow_key key = key_in(segment);
	struct dial *dial = 0;

	if (find_dial(&key, 0, &dial) != FOUND || !dial)
		return PASS;
	__u32 offset = segment->seq - (dial->isn + 1);
	if ((offset == 0 || offset == dial->have) && skb->ifindex == dial->device && is_intact(skb, segment))
		remove_dial(dial);
	release_lock(dial);
	return PASS;
}

SEC("classifier")
int full_in(struct __sk_buff *skb)
{
	struct segment segment = {};

	if (skb->cb[0] == TRANSLATED || skb->pkt_type != 0 /* PACKET_HOST */ || read_segment(skb, &segment))
		return PASS;
	/* Before the listeners: a client's port may be that of a listener at all addresses, and then a
	 * backend's answer looks like a sender's segment. */
	if (segment.flags & RST && is_of_dials_sender(&segment))
		return on_senders_reset(skb, &segment);
	if ((segment.flags & (SYN | ACK)) == (SYN | ACK) || segment.flags & RST)
		return on_upstream(skb, &segment);
	struct full_listener *listener =
		listener_at(&segment.ip.destination, segment.destination_port, segment.ip.version);
	if (listener && !is_over(listener))
		return on_downstream(skb, &segment, listener);
	return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
