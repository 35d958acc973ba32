/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The state of one network namespace. It is pinned: it outlives the truepeer process, and an upgrade finds
 * it. */
#pragma once
#include "attach/counters.h"
#include "lib/policy.h"

TABLE(tp_ports, HASH, MAX_PORTS, __be16, struct port, BPF_F_NO_PREALLOC);

TABLE(tp_settings, ARRAY, 1, __u32, struct settings, 0);

TABLE(tp_terms, ARRAY, MAX_GROUPS, __u32, struct terms, 0);

/* Not LRU: forgetting a flow with a delta would break its connection. tcp_end.bpf.c writes a flow when the
 * socket is created and removes it when the socket ends, so there is never a flow without a socket.
 * src/sizes.rs sets the sizes of this table and of the next three. */
TABLE(tp_flows, HASH, 32768, struct flow_key, struct flow, BPF_F_NO_PREALLOC);

/* No event reports the end of a connection without a socket, so the oldest entries are replaced (LRU). A
 * flood of SYNs can therefore make a handshake forgotten; its later segments are refused, never passed. With
 * --max-flows 1048576 there is room for a sweep over all ports of one address beside as many real
 * handshakes. */
TABLE(tp_pending, LRU_HASH, 8192, struct flow_key, struct pending, 0);

/* Flows whose socket is gone but whose TIME_WAIT may still answer. */
TABLE(tp_ended, LRU_HASH, 512, struct flow_key, struct flow, 0);

/* The length of a sender's last header, as the guess for its next one. */
TABLE(tp_guesses, LRU_HASH, 512, struct address, __u32, 0);

static __always_inline struct settings *settings_here(void)
{
	return ONLY_ENTRY(tp_settings);
}

/* Whether tcp_ingress has validated this packet, on this device or on one below (go_on() in drop.h).
 * Devices set the priority of what they receive to 0. */
static __always_inline int is_validated(struct __sk_buff *skb)
{
	__u64 mark;

	/* As in go_on(): the compiler would add to the context's pointer, which the verifier forbids. */
	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(mark) : "r"(skb), "i"(offsetof(struct __sk_buff, priority)));
	struct settings *settings = mark ? settings_here() : 0;

	return settings && mark == settings->validated;
}

/* The terms of the attachment that a port belongs to. */
static __always_inline struct terms *terms_of(const struct port *port)
{
	__u32 group = port->group;

	return bpf_map_lookup_elem(&tp_terms, &group);
}

/* The reason to refuse a client that a header names (`is_claimed`), or the sender that stands for itself;
 * 0: it may be shown. */
static __always_inline enum counter validate_client(const struct address *address, int is_claimed, __u8 group)
{
	struct prefix client = host(address);

	if (is_claimed && is_claim_refused(&client, group))
		return REFUSED_CLAIM;
	if (is_denied(&client, group))
		return REFUSED_DENIED;
	return 0;
}
