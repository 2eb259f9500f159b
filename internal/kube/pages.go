package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/pager"
)

// pageSize is how many objects the API server is asked for at once, as kubectl asks:
// with a node of 20 KiB that is 10 MB in the memory of both, not 100 of a cluster with
// 5000 nodes.
const pageSize = 500

// paged is a client that lists in pages what a cluster has many of: nodes, and what each
// node adds pods, events and Services to. The other kinds are listed by release, whose
// objects do not grow with the cluster. A list is whole or an error, as without pages;
// where a page has expired before it was asked for, all is read again at once.
type paged struct{ kubernetes.Interface }

func (c paged) CoreV1() typed.CoreV1Interface { return pagedCore{c.Interface.CoreV1()} }

type pagedCore struct{ typed.CoreV1Interface }

func (c pagedCore) Nodes() typed.NodeInterface { return pagedNodes{c.CoreV1Interface.Nodes()} }

func (c pagedCore) Pods(namespace string) typed.PodInterface {
	return pagedPods{c.CoreV1Interface.Pods(namespace)}
}

func (c pagedCore) Events(namespace string) typed.EventInterface {
	return pagedEvents{c.CoreV1Interface.Events(namespace)}
}

func (c pagedCore) Services(namespace string) typed.ServiceInterface {
	return pagedServices{c.CoreV1Interface.Services(namespace)}
}

type pagedNodes struct{ typed.NodeInterface }

func (n pagedNodes) List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error) {
	return listPages(ctx, opts, n.NodeInterface.List)
}

type pagedPods struct{ typed.PodInterface }

func (p pagedPods) List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	return listPages(ctx, opts, p.PodInterface.List)
}

type pagedEvents struct{ typed.EventInterface }

func (e pagedEvents) List(ctx context.Context, opts metav1.ListOptions) (*corev1.EventList, error) {
	return listPages(ctx, opts, e.EventInterface.List)
}

type pagedServices struct{ typed.ServiceInterface }

func (s pagedServices) List(ctx context.Context, opts metav1.ListOptions) (*corev1.ServiceList, error) {
	return listPages(ctx, opts, s.ServiceInterface.List)
}

// listPages calls list for one page after the other. Who asks for a limit gets what list gives.
func listPages[L any, P interface {
	*L
	runtime.Object
}](ctx context.Context, opts metav1.ListOptions, list func(context.Context, metav1.ListOptions) (P, error)) (P, error) {
	if opts.Limit > 0 || opts.Continue != "" {
		return list(ctx, opts)
	}
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, opts)
	})
	pages.PageSize = pageSize
	found, _, err := pages.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	if whole, ok := found.(P); ok {
		return whole, nil // of a single page
	}
	items, err := meta.ExtractList(found)
	if err != nil {
		return nil, fmt.Errorf("joining the pages of a list: %w", err)
	}
	all := P(new(L))
	if err := meta.SetList(all, items); err != nil {
		return nil, fmt.Errorf("joining the pages of a list: %w", err)
	}
	return all, nil
}
