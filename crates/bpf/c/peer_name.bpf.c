/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What accept() and getpeername() answer: the client, where a header named one. */
#include "maps.h"

/* Other namespaces may use the same addresses; set when it is loaded. */
const volatile __u64 netns_cookie = 0;

static __always_inline struct flow *flow_of(struct bpf_sock_addr *ctx, __u32 family)
{
	struct bpf_sock *sk = ctx->sk;
	struct flow_key key = {};

	if (!sk)
		return 0;
	key.local_port = bpf_htons(sk->src_port);
	if (!bpf_map_lookup_elem(&tp_ports, &key.local_port))
		return 0;
	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 0;
	key.sender_port = sk->dst_port;
	if (family == AF_INET) {
		key.sender.word[2] = key.local.word[2] = MAPPED;
		key.sender.word[3] = sk->dst_ip4;
		key.local.word[3] = sk->src_ip4;
	} else {
		for (__u32 i = 0; i < 4; i++) {
			key.sender.word[i] = sk->dst_ip6[i];
			key.local.word[i] = sk->src_ip6[i];
		}
	}
	struct flow *flow = bpf_map_lookup_elem(&tp_flows, &key);
	return flow && flow->client_version ? flow : 0;
}

SEC("cgroup/getpeername4")
int peer_name4(struct bpf_sock_addr *ctx)
{
	struct flow *flow = flow_of(ctx, AF_INET);
	/* An IPv6 client can't be shown to an AF_INET socket: the sender's address stays. */
	if (!flow || flow->client_version != 4)
		return 1;
	ctx->user_ip4 = flow->client.word[3];
	ctx->user_port = flow->client_port;
	return 1;
}

SEC("cgroup/getpeername6")
int peer_name6(struct bpf_sock_addr *ctx)
{
	struct flow *flow = flow_of(ctx, AF_INET6);
	if (!flow)
		return 1;
	ctx->user_ip6[0] = flow->client.word[0];
	ctx->user_ip6[1] = flow->client.word[1];
	ctx->user_ip6[2] = flow->client.word[2];
	ctx->user_ip6[3] = flow->client.word[3];
	ctx->user_port = flow->client_port;
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
