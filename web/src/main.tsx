import { render } from 'preact';
import { startPolling } from './api/server';
import { App } from './app';
import { startTheme } from './ui/theme';
import './styles/base.css';
import './styles/charts.css';
import './styles/pages.css';

startTheme();
startPolling();
render(<App />, document.getElementById('app')!);
