/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The life of a connection's socket: when it is created, the flow starts and the socket gets its client's
 * name; when it closes, for any reason, the flow ends. So there is no flow without a socket. */
#include "attach/maps.h"
#include "attach/names.h"
#include "attach/ports.h"

/* Other namespaces may use the same addresses; set when the program is loaded. */
const volatile __u64 netns_cookie = 0;

/* Two functions, not inlined: the compiler must not merge code that reads the context at different
 * offsets. */
static __noinline int fill_ipv4(struct bpf_sock_ops *ctx, struct flow_key *key)
{
	key->remote.word[2] = key->local.word[2] = MAPPED;
	key->remote.word[3] = ctx->remote_ip4;
	key->local.word[3] = ctx->local_ip4;
	return 0;
}

static __noinline int fill_ipv6(struct bpf_sock_ops *ctx, struct flow_key *key)
{
	COPY_IPV6(key->remote.word, ctx->remote_ip6);
	COPY_IPV6(key->local.word, ctx->local_ip6);
	return 0;
}

/* Nonzero: not on an attached port. */
static __always_inline int key_of(struct bpf_sock_ops *ctx, struct flow_key *key)
{
	key->local_port = bpf_htons(ctx->local_port);
	if (is_other_port(key->local_port) || bpf_get_netns_cookie(ctx) != netns_cookie)
		return -1;
	key->remote_port = bpf_htons(bpf_ntohl(ctx->remote_port));
	return ctx->family == AF_INET ? fill_ipv4(ctx, key) : fill_ipv6(ctx, key);
}

/* With a delta, a remaining TIME_WAIT still sends and receives shifted numbers. */
static __always_inline void retire(const struct flow_key *key, int may_wait)
{
	struct flow *flow = bpf_map_lookup_elem(&tp_flows, key);
	if (!flow)
		return;
	/* No header may come late any more. */
	if (flow->delta && may_wait)
		bpf_map_update_elem(&tp_ended, key, &(struct flow){ .delta = flow->delta }, BPF_ANY);
	bpf_map_delete_elem(&tp_flows, key);
}

/* Runs before accept() can return the socket: accept() needs its lock, which is held here. */
static __always_inline void give_name(struct bpf_sock_ops *ctx, const struct flow_key *key,
				      const struct flow *flow, struct endpoint *destination)
{
	struct bpf_sock *sk = ctx->sk;
	struct name name = {
		.client = flow->client,
		.client_port = flow->client_port,
		.client_version = flow->client_version,
		.delta = flow->delta,
	};

	if (sk && bpf_sk_storage_get(&tp_names, sk, &name, BPF_SK_STORAGE_GET_F_CREATE) &&
	    (is_no_address(&destination->address) ||
	     bpf_sk_storage_get(&tp_destinations, sk, destination, BPF_SK_STORAGE_GET_F_CREATE)))
		return;
	struct port *port = bpf_map_lookup_elem(&tp_ports, &key->local_port);
	if (port)
		count(port, FAILED);
}

/* Guesses the length of the sender's next header. Learnt only here: the kernel has accepted the segment that
 * the length comes from. A header that names nobody (LOCAL, UNKNOWN: a health check), or none,
 * says nothing about those that name a client. */
static __always_inline void learn_guess(const struct flow_key *key, const struct pending *pending)
{
	__u32 len = pending->have;
	__u32 *last = bpf_map_lookup_elem(&tp_guesses, &key->remote);

	if (pending->flow.header != NAMES_A_CLIENT)
		return;
	if (!last || *last != len)
		bpf_map_update_elem(&tp_guesses, &key->remote, &len, BPF_ANY);
}

/* Nonzero: there is no pending connection with a complete header. */
static __always_inline int begin_flow(const struct flow_key *key, struct flow *flow,
				      struct endpoint *destination)
{
	struct pending *pending = bpf_map_lookup_elem(&tp_pending, key);

	if (!pending || pending->stage != ESTABLISHED)
		return -1;
	*flow = pending->flow;
	*destination = pending->destination;
	learn_guess(key, pending);
	/* Add the flow before removing the pending connection: the other programs look for the flow last. */
	if (bpf_map_update_elem(&tp_flows, key, flow, BPF_ANY)) {
		pending->stage = NO_SLOT; /* its next packet is refused */
		return 0;
	}
	/* Deleting takes a lock, even of nothing. */
	if (bpf_map_lookup_elem(&tp_ended, key))
		bpf_map_delete_elem(&tp_ended, key);
	bpf_map_delete_elem(&tp_pending, key);
	return 0;
}

static __always_inline void on_established(struct bpf_sock_ops *ctx)
{
	struct flow_key key = {};
	struct flow flow = {};
	struct endpoint destination = {};

	if (key_of(ctx, &key) || begin_flow(&key, &flow, &destination))
		return;
	give_name(ctx, &key, &flow, &destination);
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

SEC("sockops")
int tcp_end(struct bpf_sock_ops *ctx)
{
	struct flow_key key = {};

	switch (ctx->op) {
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		on_established(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] == BPF_TCP_CLOSE && !key_of(ctx, &key))
			/* After LAST_ACK, TIME_WAIT is the sender's, which has acknowledged everything:
			 * nothing is left to translate. */
			retire(&key, ctx->args[0] != BPF_TCP_LAST_ACK);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
