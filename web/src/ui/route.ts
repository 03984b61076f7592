// The page is named by the part of the address behind '#', so that the server needs one file: #/chat, #/requests?id=...

import { Store } from './store';

export interface Route {
  page: 'overview' | 'requests' | 'chat';
  parameters: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path, query] = hash.replace(/^#\/?/, '').split('?', 2);
  return { page: path === 'requests' || path === 'chat' ? path : 'overview', parameters: new URLSearchParams(query ?? '') };
}

export const route = new Store<Route>(parseRoute(location.hash));
window.addEventListener('hashchange', () => route.set(parseRoute(location.hash)));
