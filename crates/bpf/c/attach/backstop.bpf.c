/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Drops packets that reach a socket of an attached port although no device's program has validated them. They
 * come by a device that is not attached, by DNAT onto the port, by a tunnel, or behind a second VLAN tag.
 * The kernel runs this program with the listener for a SYN and for the ACK that ends a handshake
 * (tcp_filter() in tcp_v4_rcv), after routing, reverse path filter and netfilter. */
#include "attach/cgroup.h"
#include "lib/sk.h"
#include "attach/maps.h"
#include "attach/refusals.h"
#include "attach/netns.h"
#include "attach/ports.h"
#include "attach/udp_backstop.h"

/* Whether a UDP port is attached; set when the program is loaded. */
const volatile __u32 has_udp = 1;

#define TAKE 1
#define LEAVE 0

/* Whether a request socket waits for its sender's ACK. */
static __always_inline int is_half_open(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *sk = look_up(skb, segment);

	if (!sk)
		return 0;
	int is = is_request(sk);
	bpf_sk_release(sk);
	return is;
}

/* Whether the kernel may create a connection from it. It handles RSTs and segments of open or unknown
 * connections by itself. */
static __always_inline int may_connect(struct __sk_buff *skb)
{
	struct segment segment = {};

	/* Behind extension headers. */
	if (read_segment(skb, &segment))
		return 1;
	if (segment.flags & RST)
		return 0;
	if (segment.flags & SYN)
		return 1;
	struct flow_key key = key_in(&segment);
	/* The socket was created while this packet was on its way to the listener. */
	if (bpf_map_lookup_elem(&tp_flows, &key))
		return 0;
	return bpf_map_lookup_elem(&tp_pending, &key) || is_half_open(skb, &segment);
}

/* Notes in the pending connection whether the listener is of the named cgroup. Only this program is given the
 * listener, and it runs before the kernel answers the SYN: so the answer is there before the header is. */
static __always_inline void note_listener(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct segment segment = {};

	if (read_segment(skb, &segment) || !(segment.flags & SYN))
		return;
	struct flow_key key = key_in(&segment);
	struct pending *pending = bpf_map_lookup_elem(&tp_pending, &key);
	if (pending)
		pending->listener = is_outside(sk) ? LISTENER_OUTSIDE : LISTENER_INSIDE;
}

static __always_inline int on_listener(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct address source;
	__be16 number = bpf_htons(sk->src_port);

	if (is_other_port(number))
		return TAKE;
	/* Nearly all packets for an attached port are. */
	if (is_validated(skb)) {
		if (named_levels)
			note_listener(skb, sk);
		return TAKE;
	}
	struct port *port = bpf_map_lookup_elem(&tp_ports, &number);
	if (!port || port->state == DRAINING)
		return TAKE;
	if (load_source(skb, &source) || sender_rule(&source, port->group) != RULE_REQUIRE)
		return TAKE;
	if (!is_of_our_netns(skb, sk) || !may_connect(skb))
		return TAKE;
	struct flow_key key = { .remote = source, .local_port = number };
	count(port, REFUSED_UNJUDGED);
	tell(&key, IPPROTO_TCP, REFUSED_UNJUDGED, 0);
	return LEAVE;
}

SEC("cgroup_skb/ingress")
int backstop(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	/* All packets of all sockets pass here. Nearly all belong to an open TCP connection, or to a port
	 * that is not attached. */
	if (!sk)
		return TAKE;
	if (sk->state == BPF_TCP_LISTEN)
		return on_listener(skb, sk);
	if (!has_udp)
		return TAKE;
	sk = bpf_sk_fullsock(sk);
	if (sk && sk->protocol == IPPROTO_UDP)
		return udp_backstop(skb, sk);
	return TAKE;
}

char _license[] SEC("license") = "Dual MIT/GPL";
